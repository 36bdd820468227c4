"""`longhaul queue`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from app.local.commands.operator_client import ask
from app.local.commands.output import Column, JsonOption, column, number, oldest_waiting, say, show_screen, waiting

commands = typer.Typer()


class By(StrEnum):
    """Whose responses are counted together."""

    MODEL = "model"
    PROJECT = "project"
    KEY = "key"


COUNTS = (waiting(), number("sent"), number("running"), number("released"))


@commands.command()
def queue(
    by: Annotated[By, typer.Option("--by", help="Whose responses are counted together.")] = By.MODEL,
    limit: Annotated[int, typer.Option(help="How many lines, those with most responses first.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """Count what has not ended: what waits, what was sent, what runs, and how old the oldest is."""
    found = ask(lambda api: api.get("queue", by=by.value, limit=limit))
    show_screen(found["data"], [*_names(by), *COUNTS, oldest_waiting()], as_json=as_json)
    if found["has_more"] and not as_json:
        say(f"There are more than these {limit}: name a larger --limit.", err=True)


def _names(by: By) -> list[Column]:
    if by is By.MODEL:
        return [column("model", "id")]
    if by is By.PROJECT:
        return [column("project", "id"), column("name")]
    return [column("key", "id"), column("name"), column("project")]
