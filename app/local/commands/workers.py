"""`longhaul workers`."""

from __future__ import annotations

import typer

from app.local.commands.operator_client import UrlOption, ask
from app.local.commands.output import Column, JsonOption, age, column, extra, number, show, slots

commands = typer.Typer()

COLUMNS = (
    column("name"),
    column("model"),
    column("state"),
    extra(column("unit")),
    extra(column("devices")),
    extra(column("device")),
    slots(),
    number("ahead"),
    number("sent"),
    number("in tools"),
    Column("tokens/s", lambda worker: worker["tokens_per_second"], is_number=True),
    age("lease", "lease_seconds"),
)


@commands.command()
def workers(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the workers: where each runs, what it has, and how fast it is."""
    show(ask(lambda api: api.get("workers"), url)["data"], COLUMNS, as_json=as_json)
