"""What `longhaul responses` refuses before it asks anybody."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer
from typer.testing import CliRunner

from app.local.commands.operator_client import path
from app.local.commands.responses import commands
from app.local.commands.responses.filters import Filter
from app.local.commands.responses.group import COLUMNS, _reach, _say_done, _tell
from config.settings import ConfigError


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["cancel", "--reason", "x"], "--all"),
        (["retry", "--reason", "x"], "--all"),
        (["cancel", "--model", "m"], "--reason"),
        (["cancel", "--all"], "--reason"),
        (["cancel", "--metadata", "run", "--reason", "x"], "KEY=VALUE"),
        (["list", "--created-after", "yesterday"], "yesterday"),
    ],
)
def test_what_is_unclear_is_refused(arguments: list[str], word: str) -> None:
    ran = CliRunner().invoke(commands, arguments)
    assert ran.exit_code == 2
    assert word in ran.output


def test_a_filter_is_said_to_actions_and_to_lists() -> None:
    only = Filter(status=["queued"], model="m", metadata=["run=a=b"], created_after="2026-11-27T14:00", ids=["resp_1"])
    at = int(datetime(2026, 11, 27, 14, tzinfo=UTC).timestamp())
    body = {"ids": ["resp_1"], "status": ["queued"], "model": "m", "metadata": {"run": "a=b"}, "created_after": at}
    assert only.body() == body
    assert only.query() == {**{name: body[name] for name in body if name != "metadata"}, "metadata[run]": "a=b"}


def test_an_option_that_is_empty_is_said_too_for_the_api_to_refuse_it() -> None:
    """As of a shell's variable that is not set: without it the others would match more than was meant."""
    only = Filter(ids=[], status=[], metadata=[], project="acme", model="", created_before="1970-01-01")
    assert only.body() == {"project": "acme", "model": "", "created_before": 0}


def test_an_age_counts_from_now() -> None:
    (seconds,) = Filter(created_before="2h").body().values()
    assert abs(datetime.now(UTC).timestamp() - 7200 - seconds) < 60


def test_a_time_may_have_a_zone() -> None:
    (seconds,) = Filter(created_before="2026-11-27T14:00+02:00").body().values()
    assert seconds == datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp()


def test_pairs_without_a_key_are_refused() -> None:
    with pytest.raises(typer.BadParameter):
        Filter(metadata=["=x"]).body()


def test_an_id_asks_no_other_route_whatever_is_in_it() -> None:
    assert path("responses", "../projects?x=1#", "why") == "responses/..%2Fprojects%3Fx%3D1%23/why"
    assert path("workers", "qwen3-8b-1f@gpu-7", "drain") == "workers/qwen3-8b-1f@gpu-7/drain"
    with pytest.raises(ConfigError, match="empty"):
        path("responses", "", "why")


FAILED = {
    "id": "resp_1",
    "status": "failed",
    "project": "proj_1",
    "project_name": "team red",
    "key_id": "key_1",
    "model": "m",
    "service_tier": "default",
    "background": True,
    "created_at": 0,
    "finished_at": 1,
    "attempt": 2,
    "yields": 0,
    "crashes": 0,
    "sent_to": "w2",
    "error_code": "server_error",
    "error": {"code": "server_error", "message": "the script fails this request, and says so at length"},
    "request_bytes": 1012,
    "output_bytes": 221,
    "log_bytes": 788,
    "metadata": {},
    "usage": None,
    "batch_id": "batch_1",
    "retry_of": None,
    "retried_by": None,
    "request_id": None,
    "traceparent": None,
    "tool_calls": [],
    "attempts": [
        {"attempt": 0, "first_event": 0, "last_event": 1, "flushes": 1, "tokens": 0},
        {"attempt": 1, "first_event": 2, "last_event": 17, "flushes": 1, "tokens": 771},
    ],
    "moments": [
        {"what": "accepted", "at": 0.0004, "attempt": None, "worker": None},
        {"what": "its worker died; counted as a crash: no", "at": 0.25, "attempt": 1, "worker": "w1"},
        {"what": "failed (server_error: the script fails)", "at": 1.5, "attempt": None, "worker": None},
    ],
}


def test_a_line_of_a_list_has_the_error_s_code_and_the_project_s_name() -> None:
    line = {each.title: each.of(FAILED) for each in COLUMNS}
    assert (line["error"], line["project"]) == ("server_error", "team red")
    assert {each.title: each.of({**FAILED, "project_name": None}) for each in COLUMNS}["project"] == "proj_1"


def test_a_story_has_units_and_milliseconds_and_says_an_error_once(capsys: pytest.CaptureFixture[str]) -> None:
    _tell(FAILED)
    shown = capsys.readouterr().out
    assert "  project proj_1 (team red), key key_1; m, default, background\n" in shown
    assert "  request 1,012 bytes, output 221 bytes, log 788 bytes; metadata {}\n" in shown
    assert "  batch id batch_1\n" in shown
    assert "  1970-01-01 00:00:00.250 UTC  its worker died; counted as a crash: no  (attempt 1 on w1)\n" in shown
    assert "  attempts 2, yields 0, crashes since it made progress 0; worker w2\n" in shown
    assert "    accepted by the API: events 0 to 1\n" in shown
    assert "    attempt 1: events 2 to 17, 771 tokens in 1 flush\n" in shown
    assert shown.count("server_error") == 1


def test_the_question_before_an_action_names_batches_and_what_is_in_their_files() -> None:
    counted = {"matching": 1016, "is_exact": True, "batches": 0, "lines_in_files": 0}
    assert _reach(counted) == "1,016 responses"
    assert _reach({**counted, "matching": 1}) == "1 response"
    assert _reach({**counted, "is_exact": False}) == "1,016 or more responses"
    lines = {**counted, "lines_in_files": 48_300}
    assert _reach({**lines, "batches": 3}) == "1,016 responses, 3 batches and 48,300 lines in files"
    assert _reach(lines) == "1,016 responses and 48,300 lines in files"
    assert _reach({**counted, "batches": 1}) == "1,016 responses and 1 batch"


def test_an_action_at_its_end_accounts_for_all_that_matched(capsys: pytest.CaptureFixture[str]) -> None:
    action = {"id": "action_1", "kind": "cancel", "state": "completed", "matched": 20, "done": 12, "batches": 1}
    _say_done({**action, "refused": {}}, as_json=False)
    _say_done({**action, "kind": "retry", "batches": 0, "refused": {"not_stored": 8}}, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "action_1 completed: cancel 12 of 20; 8 had ended by then; 1 batch cancelled",
        "action_1 completed: retry 12 of 20; 8 left: not_stored",
    ]
