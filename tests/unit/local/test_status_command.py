"""The screens of `longhaul status`, `workers` and `queue`, from answers of the API."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from app.local.commands import views

MODEL: dict[str, Any] = {
    "model": "m",
    "workers": {"ready": 2, "draining": 0, "drained": 1, "absent": 0, "lost": 0},
    "is_paused": False,
    "slots": 16,
    "in_slots": 16,
    "ahead": 0,
    "waiting": 60,
    "in_files": 0,
    "paused": 0,
    "sent": 0,
    "running": 16,
    "released": 0,
    "oldest_waiting_seconds": 28.0,
    "ended_per_second": 3.2,
    "tokens_per_second": 375.4,
    "pace_seconds": 58.0,
    "classes": [],
}
FOUND: dict[str, Any] = {"grade": "fine", "problems": [], "notices": [], "models": [MODEL], "pauses": [], "limits": []}
TOLD = {"text": "Something.", "advice": "Do this.", "code": "x", "model": "m"}


def shown(monkeypatch: pytest.MonkeyPatch, command: str, answer: Any, code: int = 0) -> str:
    monkeypatch.setattr(views, "ask", lambda act: answer)
    ran = CliRunner().invoke(views.commands, [command])
    assert ran.exit_code == code, ran.output
    return ran.output


def cells(output: str, first: str) -> dict[str, str]:
    """The line of a table that begins with this cell, by its titles."""
    lines = [each.split("\t") for each in output.splitlines()]
    at = next(number for number, each in enumerate(lines) if each[0] == first)
    return dict(zip(lines[at - 1], lines[at], strict=True))


@pytest.mark.parametrize(
    ("found", "first", "code"),
    [
        ({}, "Nothing is wrong, and nothing needs attention.", 0),
        ({"grade": "attention", "notices": [TOLD]}, "Nothing is broken, but this needs attention:\n* Something.", 0),
        ({"grade": "wrong", "problems": [TOLD], "notices": [TOLD]}, "Something is wrong:\n! Something.", 1),
    ],
)
def test_the_first_lines_have_the_time_and_the_grade(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], first: str, code: int
) -> None:
    output = shown(monkeypatch, "status", {**FOUND, **found}, code)
    assert output.partition(" UTC: ")[2].startswith(first)
    assert output.count("* Something.\n  Do this.\n") == len(found.get("notices", ()))


def test_rates_stand_beside_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    line = cells(shown(monkeypatch, "status", FOUND), "m")
    assert (line["ended/s"], line["tokens/s"], line["over"]) == ("3.20", "375", "58s")
    assert (line["workers"], line["oldest waiting"]) == ("2 ready, 1 drained", "28s")


def test_a_paused_model_says_so_and_one_without_a_pace_has_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    still = {**MODEL, "is_paused": True, "pace_seconds": 0.0}
    line = cells(shown(monkeypatch, "status", {**FOUND, "models": [still]}), "m")
    assert (line["workers"], line["ended/s"]) == ("2 ready, 1 drained (paused)", "-")


def test_drained_workers_have_their_reason_and_others_no_column_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = dict.fromkeys(("model", "state", "unit", "devices", "device", "ahead", "sent", "in_tools", "slots"), 0)
    rates = {"in_slots": 0, "tokens_per_second": 0.0, "pace_seconds": 0.0, "lease_seconds": 20.0}
    worker = {"name": "w1", **names, **rates, "draining_since": None, "drain_reason": None}
    line = cells(shown(monkeypatch, "workers", {"data": [worker]}), "w1")
    assert (line["lease left"], line["tokens/s"], "reason" in line) == ("20s", "-", False)
    line = cells(
        shown(monkeypatch, "workers", {"data": [{**worker, "draining_since": 60, "drain_reason": "fan"}]}), "w1"
    )
    assert (line["drained since (UTC)"], line["reason"]) == ("1970-01-01 00:01:00", "fan")
