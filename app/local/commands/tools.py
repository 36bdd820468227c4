"""`longhaul tools ...`: runs an MCP server that comes with Longhaul; it gets all arguments unchanged."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from config.service_links import drop_service_links

_PASS_ALL_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

commands = typer.Typer(help="Run an MCP server: a Python sandbox, or web search.", no_args_is_help=True)


def _become(module: str, arguments: list[str]) -> NoReturn:
    """Replaces this process. The working directory stays, so that relative paths in the arguments are right."""
    drop_service_links(os.environ)
    os.umask(0o077)
    # -P: a folder `workers` in the working directory must not be imported.
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], dict(os.environ))


@commands.command(context_settings=_PASS_ALL_ARGUMENTS, add_help_option=False)
def python(context: typer.Context) -> None:
    """Run Python code in a sandbox (`longhaul tools python --help`)."""
    _become("workers.toolservers.python", context.args)


@commands.command(context_settings=_PASS_ALL_ARGUMENTS, add_help_option=False)
def browser(context: typer.Context) -> None:
    """Search the web and open pages (`longhaul tools browser --help`)."""
    _become("workers.toolservers.browser", context.args)
