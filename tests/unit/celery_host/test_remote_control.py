"""What a worker does for a command: which handlers it has, and whose signature it believes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from app.queue.commands import Command, signed
from workers.celery_host import remote_control
from workers.celery_host.remote_control import Commands

KEY = b"k" * 32


def state(key: bytes = KEY) -> Any:
    pool = SimpleNamespace(runner=SimpleNamespace(command_key=key), revoke=lambda ids: None)
    return SimpleNamespace(hostname="w1@here", consumer=SimpleNamespace(pool=pool))


def commands(done: list[Any]) -> Commands:
    return Commands({}, {command: lambda _, **said: done.append(said) for command in Command})


def test_a_revoke_stops_jobs_and_looks_at_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(remote_control.celery_control, "revoke", lambda *_, **__: {"ok": "revoked"})
    pool = SimpleNamespace(revoke=stopped.extend)
    assert remote_control.revoke(SimpleNamespace(consumer=SimpleNamespace(pool=pool)), ["resp_1", "resp_2"])
    assert stopped == ["resp_1", "resp_2"]


@pytest.mark.parametrize("key", [b"", b"j" * 32])
def test_a_worker_without_the_key_obeys_nothing(key: bytes) -> None:
    done: list[Any] = []
    said = signed(KEY, Command.REVOKE, {"task_id": ["resp_1"]}, None, "n")
    assert "refused" in commands(done)["revoke"](state(key), **said)["error"]
    assert not done


def test_nobody_signs_with_no_key() -> None:
    done: list[Any] = []
    said = signed(b"", Command.REVOKE, {"task_id": ["resp_1"]}, None, "n")
    assert "refused" in commands(done)["revoke"](state(b""), **said)["error"]
    assert not done


def test_a_flood_of_refused_commands_is_a_few_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    refusing = commands([])
    with caplog.at_level(logging.WARNING):
        for _ in range(5_000):
            refusing["x" * 10_000](state())
    assert [len(record.getMessage()) < 300 for record in caplog.records] == [True] * 4
    assert refusing.refused == 5_000
