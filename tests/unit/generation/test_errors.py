"""What becomes of a response whose run raised: what is written about it, in a store that only takes notes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from app.store.guards import HandOver
from app.store.responses import claims, endings
from workers.engine.base import EngineAway, EngineDead, InvalidSampling, RequestAborted
from workers.generation.errors import ErrorHandler
from workers.generation.outcome import Cancelled, Outcome, current_job


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is written: the code of a failure, or how a response is released, with its crashes."""
    notes: list[Any] = []

    async def fail(db: Any, response_id: str, code: str, message: str, **owner: Any) -> None:
        notes.append(code)

    async def release(db: Any, response_id: str, attempt: int, worker: str, crashes: int, how: HandOver) -> bool:
        notes.append((how, crashes))
        return True

    monkeypatch.setattr(endings, "fail", fail)
    monkeypatch.setattr(claims, "release", release)
    return notes


def run_of(crashes: int = 0, before: Sequence[HandOver] = ()) -> Any:
    """A run whose log cannot be restored, so a failure is written without it."""

    async def done() -> None: ...

    row = SimpleNamespace(id="resp_1", attempt=2, crashes=crashes, history=[{"how": how} for how in before])
    fields = {"row": row, "worker": "w", "commits": 0, "is_alone": False, "fenced": False, "yielding": False}
    return SimpleNamespace(last_chunk_written=done, **fields)


def handler(engine_died: Any = lambda: None) -> ErrorHandler:
    return ErrorHandler(None, None, 5, engine_died)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("crashes", "before", "what"),
    [
        (0, [], (HandOver.ENGINE_GAVE_UP, 1)),
        (1, [HandOver.ENGINE_GAVE_UP], "invalid_prompt"),
        (1, [HandOver.CRASHED], (HandOver.ENGINE_GAVE_UP, 2)),
        (1, [HandOver.ENGINE_GAVE_UP, HandOver.CRASHED], (HandOver.ENGINE_GAVE_UP, 2)),
    ],
)
async def test_an_engine_that_fails_twice_at_one_place_has_found_the_callers_fault(
    written: list[Any], crashes: int, before: list[HandOver], what: Any
) -> None:
    refusal = InvalidSampling("bad_words and text.format: together they leave no token to go on with")
    await handler().handle(run_of(crashes, before), RequestAborted("it says 'error'", counts=True, refusal=refusal))
    assert written == [what]


@pytest.mark.parametrize(("why", "how"), [(Cancelled.SHUTDOWN, HandOver.DRAINED), (None, HandOver.CUT_OFF)])
async def test_a_cancellation_that_nobody_asked_for_is_no_drain(
    written: list[Any], caplog: pytest.LogCaptureFixture, why: Cancelled | None, how: HandOver
) -> None:
    current_job.set(SimpleNamespace(cancelled=why, request=None))
    assert await handler().handle(run_of(), asyncio.CancelledError()) is Outcome.RELEASED
    assert written == [(how, 0)]
    assert ("cancelled by nobody" in caplog.text) is (why is None)


@pytest.mark.parametrize(
    ("error", "how", "crashes", "stops"),
    [
        (EngineAway("no"), HandOver.ENGINE_GAVE_UP, 0, False),
        (EngineAway("cut", counts=True), HandOver.ENGINE_DIED, 1, False),
        (EngineDead("gone", counts=True), HandOver.ENGINE_DIED, 1, True),
    ],
)
async def test_a_worker_outlives_an_engine_that_comes_back(
    written: list[Any], error: EngineDead, how: HandOver, crashes: int, stops: bool
) -> None:
    stopped: list[bool] = []
    await handler(lambda: stopped.append(True)).handle(run_of(), error)
    assert (written, bool(stopped)) == ([(how, crashes)], stops)
