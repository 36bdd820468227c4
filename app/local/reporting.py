"""Errors of a command as one line for its user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from app.local.errors import LocalError
from config.settings import ConfigError

CONFIG_STATUS = 2


@contextmanager
def one_line() -> Iterator[None]:
    """Turns an error that the user can mend into one line on stderr and a status: 2 for settings, else its own."""
    try:
        yield
    except (ConfigError, LocalError) as error:
        typer.echo(f"longhaul: {error}", err=True)
        raise typer.Exit(CONFIG_STATUS if isinstance(error, ConfigError) else error.status) from None
