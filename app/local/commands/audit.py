"""`longhaul audit`: the audit log, for programs that keep or watch it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from app.local.commands.database import opened
from app.local.errors import LocalError
from app.local.home import with_running_services
from app.protocol.events.frames import encode_line
from app.store.database import Database, retry_until_available
from app.store.paging import Page
from app.store.tenants import audit
from app.store.tenants.audit import AuditFilter, AuditRow
from config.settings import load_settings

PAGE_ENTRIES = 500
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
    asyncio.run(_export(after, follow=follow))


async def _export(after: str | None, *, follow: bool) -> None:
    async with opened(with_running_services(load_settings())) as db:
        while True:
            entries, has_more = await retry_until_available(partial(_entries, db, after))
            for entry in entries:
                typer.echo(encode_line(asdict(entry)))
                after = entry.id
            if not has_more and not follow:
                return
            if not has_more:
                await asyncio.sleep(POLL_SECONDS)


async def _entries(db: Database, after: str | None) -> tuple[list[AuditRow], bool]:
    found = await audit.find_page(db, AuditFilter(), Page(PAGE_ENTRIES, after))
    if found is None:
        raise LocalError(f"--after: there is no entry '{after}'; entries are deleted after their retention")
    return found
