"""`longhaul doctor`: all checks of an installation, as one process of it sees it: with this command's settings."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable
from typing import Annotated

import typer

from app.local.commands.doctor import machine, postgres, redis
from app.local.commands.doctor.finding import Findings, Level, fail
from app.local.commands.output import Column, JsonOption, column, say, show
from app.local.home import with_running_services
from app.protocol.text import type_and_places
from config.models import ModelCatalog, load_models
from config.settings import ConfigError, load_settings

commands = typer.Typer()

COLUMNS = (
    Column("", lambda finding: finding["level"]),
    column("check"),
    column("found"),
    Column("to do", lambda finding: finding["to_do"] or None),
)


@commands.command()
def doctor(
    as_json: JsonOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 for warnings, too.")] = False,
) -> None:
    """Check this installation: settings, Postgres, Redis, rights, clocks, models, GPUs. Changes nothing.

    Run it with the settings of a process, beside the services. The status is 1 if something does not work.
    """
    findings = asyncio.run(check())
    entries = [
        {"check": each.check, "level": each.level.value, "found": each.found, "to_do": each.to_do} for each in findings
    ]
    show(entries, COLUMNS, as_json=as_json)
    levels = Counter(each.level for each in findings)
    if not as_json:
        summary = f"{levels[Level.OK]} ok, {levels[Level.WARN]} to look at, {levels[Level.FAIL]} wrong"
        say(summary, "red" if levels[Level.FAIL] else "yellow" if levels[Level.WARN] else "green")
    if levels[Level.FAIL] or (strict and levels[Level.WARN]):
        raise typer.Exit(1)


async def check() -> Findings:
    """Everything that was found, in the order in which one would mend it. Changes nothing."""
    try:
        given = load_settings()
    except ConfigError as error:
        return [fail("settings", str(error), "docs/settings.md says what it may be; the rest was not looked at")]
    settings = with_running_services(given)
    is_embedded = settings.database_url != given.database_url
    catalog: ModelCatalog | None = None
    found: Findings = []
    try:
        catalog = load_models(settings.models)
    except ConfigError as error:
        found = [fail("models file", str(error), "docs/models-file.md; no process starts like this")]
    looks = {
        "Postgres": postgres.check(settings, is_embedded=is_embedded),
        "monitor's role": postgres.check_monitor(settings),
        "Redis": redis.check(settings),
        "machine": asyncio.to_thread(lambda: list(machine.check(settings, catalog, os.environ))),
    }
    seen = await asyncio.gather(*(_whatever_happens(name, look) for name, look in looks.items()))
    return [*found, *(each for some in seen for each in some)]


async def _whatever_happens(name: str, look: Awaitable[Findings]) -> Findings:
    """One look that goes wrong must not hide what the others find."""
    try:
        return await look
    except Exception as error:
        return [fail(name, f"the look at it went wrong: {type_and_places(error)}", "this is a bug of Longhaul's")]
