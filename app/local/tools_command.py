"""`longhaul tools ...`: the tool servers that ship, each a program of its own that gets all arguments as they come."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

_EVERYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

tools = typer.Typer(help="Run a tool server: code and web search for models, over MCP.", no_args_is_help=True)


def _become(module: str, arguments: list[str]) -> NoReturn:
    """Replaces this process, in the folder where it was called: paths among the arguments mean what they say."""
    os.umask(0o077)
    # -P: a folder `workers` in the working directory is not ours.
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], dict(os.environ))


@tools.command(context_settings=_EVERYTHING, add_help_option=False)
def python(context: typer.Context) -> None:
    """Run Python code in a sandbox (`longhaul tools python --help`)."""
    _become("workers.toolservers.python", context.args)


@tools.command(context_settings=_EVERYTHING, add_help_option=False)
def browser(context: typer.Context) -> None:
    """Search the web and open pages (`longhaul tools browser --help`)."""
    _become("workers.toolservers.browser", context.args)
