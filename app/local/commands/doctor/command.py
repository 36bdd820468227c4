"""`longhaul doctor`."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

import typer

from app.local.commands.doctor import installation
from app.local.commands.doctor.finding import Level
from app.local.commands.output import Column, JsonOption, column, say, show

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
    findings = asyncio.run(installation.check())
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
