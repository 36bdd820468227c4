"""`longhaul workers`."""

from __future__ import annotations

import typer

from app.local.commands.operator_client import ask
from app.local.commands.output import (
    RATE_TIME,
    RATES_ARE,
    JsonOption,
    age,
    column,
    moment,
    number,
    rate,
    show_screen,
    slots,
)

commands = typer.Typer()

COLUMNS = (
    column("name"),
    column("model"),
    column("state"),
    column("unit"),
    column("device ids", "devices"),
    column("device"),
    slots(),
    number("ahead"),
    number("sent"),
    number("in tools"),
    rate("tokens/s", "tokens_per_second", 1),
    RATE_TIME,
    age("lease left", "lease_seconds"),
)
DRAINED = (moment("drained since (UTC)", "draining_since"), column("reason", "drain_reason"))
"""Columns for as long as operators have drained a worker."""


@commands.command()
def workers(as_json: JsonOption = False) -> None:
    """List the workers: where each runs, what it has, and how fast it is."""
    found = ask(lambda api: api.get("workers"))["data"]
    is_drained = any(each["draining_since"] is not None for each in found)
    show_screen(found, [*COLUMNS, *(DRAINED if is_drained else ())], RATES_ARE, as_json=as_json)
