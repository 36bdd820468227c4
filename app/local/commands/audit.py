"""`longhaul audit`: the audit log, for programs that keep or watch it."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from app.local.commands.operator_client import PAGE, OperatorClient, administer
from app.local.commands.output import show_json
from app.local.errors import OutOfReach

POLL_SECONDS = 1.0

commands = typer.Typer(help="Read the audit log.", no_args_is_help=True)


@commands.callback()
def audit_log() -> None:
    """Makes `export` a command of a group."""


@commands.command()
def export(
    after: Annotated[str | None, typer.Option(help="The id of the last entry that you have; by default none.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what operators change from now on.")] = False,
) -> None:
    """Print the entries as lines of JSON, the oldest first."""
    administer(lambda api: _export(api, after, follow=follow))


async def _export(api: OperatorClient, after: str | None, *, follow: bool) -> None:
    while True:
        try:
            page = await api.get("audit_logs", order="asc", after=after, limit=PAGE)
        except OutOfReach:
            if not follow:
                raise
            page = {"data": [], "has_more": False}
        show_json(page["data"])
        after = page["data"][-1]["id"] if page["data"] else after
        if not page["has_more"]:
            if not follow:
                return
            await asyncio.sleep(POLL_SECONDS)
