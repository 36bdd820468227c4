"""`longhaul status`."""

from __future__ import annotations

from typing import Any

import typer

from app.local.commands.operator_client import ask
from app.local.commands.output import (
    RATE_TIME,
    RATES_ARE,
    Column,
    Entry,
    JsonOption,
    clock,
    column,
    number,
    oldest_waiting,
    rate,
    say,
    show,
    show_json,
    slots,
    waiting,
)

WRONG_STATUS = 1
GRADES = {
    "fine": ("Nothing is wrong, and nothing needs attention.", "green"),
    "attention": ("Nothing is broken, but this needs attention:", "bold yellow"),
    "wrong": ("Something is wrong:", "bold red"),
}
"""What is said first, and in which style, by the answer's `grade`."""

commands = typer.Typer()

MODELS = (
    column("model"),
    Column("workers", lambda model: _workers(model)),
    slots(),
    number("ahead"),
    waiting(),
    number("sent"),
    number("released"),
    oldest_waiting(),
    rate("ended/s", "ended_per_second", 2),
    rate("tokens/s", "tokens_per_second", 0),
    RATE_TIME,
)
CLASSES = (
    column("model"),
    column("tier"),
    column("mode"),
    number("waiting"),
    number("sent"),
    number("running"),
    oldest_waiting(),
)
LIMITS = (
    column("project"),
    column("name", "project_name"),
    column("model"),
    column("limit", "kind"),
    number("value"),
    number("remaining"),
)


@commands.command()
def status(as_json: JsonOption = False) -> None:
    """Show the deployment on one screen: what is wrong or needs attention, models, workers, queue, limits.

    Exit status 1 if something is wrong; what needs attention alone is no failure.
    """
    found = ask(lambda api: api.get("status"))
    if as_json:
        show_json([found])
    else:
        _show(found)
    if found["problems"]:
        raise typer.Exit(WRONG_STATUS)


def _show(found: dict[str, Any]) -> None:
    said, style = GRADES[found["grade"]]
    say(f"{clock()}: {said}", style)
    for sign, style, each in (
        *(("!", "bold red", problem) for problem in found["problems"]),
        *(("*", "bold yellow", notice) for notice in found["notices"]),
    ):
        say(f"{sign} {each['text']}", style)
        say(f"  {each['advice']}")
    say("")
    show(found["models"], MODELS, as_json=False)
    classes = [{"model": model["model"], **each} for model in found["models"] for each in model["classes"]]
    if classes:
        say("")
        show(classes, CLASSES, as_json=False)
    say(RATES_ARE)
    if found["limits"]:
        say("")
        say("Limits that are used up:")
        show(found["limits"], LIMITS, as_json=False)


def _workers(model: Entry) -> str:
    states = ", ".join(f"{number} {state}" for state, number in model["workers"].items() if number) or "none"
    return f"{states} (paused)" if model["is_paused"] else states
