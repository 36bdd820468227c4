"""`longhaul status`, `queue`, `workers` and `why`: what operators see of the deployment."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from app.local.commands.operator_client import ask, path
from app.local.commands.output import Column, Entry, JsonOption, column, duration, moment, number, say, show, show_json
from app.operations import words

WRONG_STATUS = 1
GRADES = {
    "fine": ("Nothing is wrong, and nothing needs attention.", "green"),
    "attention": ("Nothing is broken, but this needs attention:", "bold yellow"),
    "wrong": ("Something is wrong:", "bold red"),
}
"""What is said first, and in which style, by the answer's `grade`."""
RATES_ARE = "Rates are of responses that ended: means of the time under `over`, five minutes at most."

commands = typer.Typer()


def _rate(title: str, name: str, digits: int) -> Column:
    """A column of numbers a second, which are means of `pace_seconds`: `-` where nothing ended of late."""
    return Column(title, lambda entry: f"{entry[name]:.{digits}f}" if entry["pace_seconds"] else None, is_number=True)


def _waiting(entry: Entry) -> str:
    """Responses that wait, and lines of batches that are none yet."""
    in_files = f" + {entry['in_files']} in files" if entry["in_files"] else ""
    return f"{entry['waiting']}{in_files}"


def _workers(model: Entry) -> str:
    states = ", ".join(f"{number} {state}" for state, number in model["workers"].items() if number) or "none"
    return f"{states} (paused)" if model["is_paused"] else states


SLOTS = Column("slots", lambda entry: f"{entry['in_slots']}/{entry['slots']}", is_number=True)
WAITING = Column("waiting", _waiting, is_number=True)
OLDEST_WAITING = Column(
    "oldest waiting", lambda entry: duration(entry["oldest_waiting_seconds"] or None), is_number=True
)
"""How long the oldest that waits has waited; 0 and None: none does."""
RATE_TIME = Column("over", lambda entry: duration(entry["pace_seconds"] or None), is_number=True)
"""The time of which the rates are means."""
MODELS = (
    column("model"),
    Column("workers", _workers),
    SLOTS,
    number("ahead"),
    WAITING,
    number("sent"),
    number("released"),
    OLDEST_WAITING,
    _rate("ended/s", "ended_per_second", 2),
    _rate("tokens/s", "tokens_per_second", 0),
    RATE_TIME,
)
CLASSES = (
    column("model"),
    column("tier"),
    column("mode"),
    number("waiting"),
    number("sent"),
    number("running"),
    OLDEST_WAITING,
)
LIMITS = (
    column("project"),
    column("name", "project_name"),
    column("model"),
    column("limit", "kind"),
    number("value"),
    number("remaining"),
)
COUNTS = (WAITING, number("sent"), number("running"), number("released"), OLDEST_WAITING)
WORKERS = (
    column("name"),
    column("model"),
    column("state"),
    column("unit"),
    column("device ids", "devices"),
    column("device"),
    SLOTS,
    number("ahead"),
    number("sent"),
    number("in tools"),
    _rate("tokens/s", "tokens_per_second", 1),
    RATE_TIME,
    Column("lease left", lambda entry: duration(entry["lease_seconds"]), is_number=True),
)
DRAINED = (moment("drained since (UTC)", "draining_since"), column("reason", "drain_reason"))
"""Columns for as long as operators have drained a worker."""


def _show_screen(entries: Iterable[Entry], columns: Sequence[Column], note: str = "", *, as_json: bool) -> None:
    """Shows the entries as they are now: on a terminal with the time above them, and a note below."""
    is_screen = sys.stdout.isatty() and not as_json
    if is_screen:
        say(words.moment(datetime.now(UTC)))
    show(entries, columns, as_json=as_json)
    if is_screen and note:
        say(note)


@commands.command()
def status(as_json: JsonOption = False) -> None:
    """Show the deployment on one screen: what is wrong or needs attention, models, workers, queue, limits.

    Exit status 1 if something is wrong; what needs attention alone is no failure.
    """
    found = ask(lambda api: api.get("status"))
    if as_json:
        show_json([found])
    else:
        _show_status(found)
    if found["problems"]:
        raise typer.Exit(WRONG_STATUS)


def _show_status(found: dict[str, Any]) -> None:
    said, style = GRADES[found["grade"]]
    say(f"{words.moment(datetime.now(UTC))}: {said}", style)
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


class By(StrEnum):
    """Whose responses are counted together."""

    MODEL = "model"
    PROJECT = "project"
    KEY = "key"


NAMES = {
    By.MODEL: (column("model", "id"),),
    By.PROJECT: (column("project", "id"), column("name")),
    By.KEY: (column("key", "id"), column("name"), column("project")),
}


@commands.command()
def queue(
    by: Annotated[By, typer.Option("--by", help="Whose responses are counted together.")] = By.MODEL,
    limit: Annotated[int, typer.Option(help="How many lines, those with most responses first.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """Count what has not ended: what waits, what was sent, what runs, and how old the oldest is."""
    found = ask(lambda api: api.get("queue", by=by.value, limit=limit))
    _show_screen(found["data"], [*NAMES[by], *COUNTS], as_json=as_json)
    if found["has_more"] and not as_json:
        say(f"There are more than these {limit}: name a larger --limit.", err=True)


@commands.command()
def workers(as_json: JsonOption = False) -> None:
    """List the workers: where each runs, what it has, and how fast it is."""
    found = ask(lambda api: api.get("workers"))["data"]
    is_drained = any(each["draining_since"] is not None for each in found)
    _show_screen(found, [*WORKERS, *(DRAINED if is_drained else ())], RATES_ARE, as_json=as_json)


@commands.command()
def why(
    response: Annotated[str, typer.Argument(help="The id of the response: resp_...")],
    as_json: JsonOption = False,
) -> None:
    """Say why a response does not run, where it runs, or how it ended."""
    found = ask(lambda api: api.get(path("responses", response, "why")))
    if as_json:
        show_json([found])
        return
    say(f"{found['status']}: {found['text']}", "bold")
    if found["advice"]:
        say(found["advice"])
    project = found["project"] + (f" ({found['project_name']})" if found["project_name"] else "")
    details = {
        "reason": found["reason"],
        "model": found["model"],
        "project": project,
        "key": found["key_id"],
        "class": f"{found['tier']}, {found['mode']}",
        "worker": found["worker"],
        "behind about": found["behind"],
        "fails in": duration(found["queue_seconds_left"] or found["run_seconds_left"]),
    }
    for name, value in details.items():
        if value is not None:
            say(f"  {name:<14}{value}")
