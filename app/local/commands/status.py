"""`longhaul status`."""

from __future__ import annotations

from typing import Any

import typer

from app.local.commands.operator_client import UrlOption, ask
from app.local.commands.output import Column, JsonOption, age, column, number, say, show, show_json, slots

WRONG_STATUS = 1

commands = typer.Typer()

MODELS = (
    column("model"),
    Column("workers", lambda model: _workers(model["workers"])),
    slots(),
    number("ahead"),
    number("waiting"),
    number("sent"),
    number("released"),
    age("oldest", "oldest_waiting_seconds"),
    age("empty in", "empty_in_seconds"),
    Column("ended/s", lambda model: f"{model['ended_per_second']:.2f}", is_number=True),
    Column("tokens/s", lambda model: f"{model['tokens_per_second']:.0f}", is_number=True),
)
CLASSES = (
    column("model"),
    column("tier"),
    column("mode"),
    number("waiting"),
    number("sent"),
    number("running"),
    age("oldest", "oldest_waiting_seconds"),
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
def status(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show the deployment on one screen: what is wrong, models, workers, queue, limits. Status 1 if something is."""
    found = ask(lambda api: api.get("status"), url)
    if as_json:
        show_json([found])
    else:
        _show(found)
    if found["problems"]:
        raise typer.Exit(WRONG_STATUS)


def _show(found: dict[str, Any]) -> None:
    for problem in found["problems"]:
        say(f"! {problem['text']}", "bold red")
        say(f"  {problem['advice']}")
    if not found["problems"]:
        say("Nothing is wrong.", "green")
    say("")
    show(found["models"], MODELS, as_json=False)
    classes = [{"model": model["model"], **each} for model in found["models"] for each in model["classes"]]
    if classes:
        say("")
        show(classes, CLASSES, as_json=False)
    for pause in found["pauses"]:
        whom = "" if pause["project"] is None else f", project {pause['project']}"
        why = f": {pause['reason']}" if pause["reason"] else ""
        say(f"Paused: {pause['model']}{whom}{why}", "yellow")
    if found["limits"]:
        say("")
        say("These limits refuse requests:")
        show(found["limits"], LIMITS, as_json=False)


def _workers(states: dict[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in states.items() if number) or "none"
