"""What becomes of a response whose run raised."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.store.guards import HandOver
from workers.engine.base import EngineAway, EngineDead, InvalidSampling, RequestAborted
from workers.generation.cancellation import Cancelled, current_job
from workers.generation.errors import ErrorHandler


@pytest.mark.parametrize(
    ("crashes", "before", "written"),
    [
        (0, [], "released"),
        (1, [HandOver.ENGINE_GAVE_UP], "invalid_prompt"),
        (1, [HandOver.CRASHED], "released"),
        (1, [HandOver.ENGINE_GAVE_UP, HandOver.CRASHED], "released"),
    ],
)
async def test_an_engine_that_fails_twice_at_one_place_has_found_the_callers_fault(
    monkeypatch: pytest.MonkeyPatch, crashes: int, before: list[HandOver], written: str
) -> None:
    found: list[Any] = []

    async def fail(handler: Any, run: Any, code: str, message: str) -> None:
        found.append(code)

    async def release(handler: Any, run: Any, how: HandOver, crashes: int | None = None) -> None:
        found.append("released")

    monkeypatch.setattr(ErrorHandler, "_fail", fail)
    monkeypatch.setattr(ErrorHandler, "_release", release)
    handler = ErrorHandler(None, None, 5, lambda: None)  # type: ignore[arg-type]

    async def written_already() -> None: ...

    row = SimpleNamespace(id="resp_1", attempt=2, crashes=crashes, history=[{"how": how} for how in before])
    run: Any = SimpleNamespace(row=row, commits=0, is_alone=False, last_chunk_written=written_already)
    refusal = InvalidSampling("bad_words and text.format: together they leave no token to go on with")
    await handler.handle(run, RequestAborted("it says 'error'", counts=True, refusal=refusal))
    assert found == [written]


@pytest.mark.parametrize(("why", "how"), [(Cancelled.SHUTDOWN, HandOver.DRAINED), (None, HandOver.CUT_OFF)])
async def test_a_cancellation_that_nobody_asked_for_is_no_drain(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: Cancelled | None, how: HandOver
) -> None:
    found: list[HandOver] = []

    async def release(handler: Any, run: Any, how: HandOver, crashes: int | None = None) -> None:
        found.append(how)

    monkeypatch.setattr(ErrorHandler, "_release", release)
    current_job.set(SimpleNamespace(cancelled=why, request=None))
    handler = ErrorHandler(None, None, 5, lambda: None)  # type: ignore[arg-type]
    run: Any = SimpleNamespace(fenced=False, yielding=False)
    await handler.handle(run, asyncio.CancelledError())
    assert found == [how]
    assert ("cancelled by nobody" in caplog.text) is (why is None)


@pytest.mark.parametrize(
    ("error", "how", "crashes", "stops"),
    [
        (EngineAway("no"), HandOver.ENGINE_GAVE_UP, None, False),
        (EngineAway("cut", counts=True), HandOver.ENGINE_DIED, 1, False),
        (EngineDead("gone", counts=True), HandOver.ENGINE_DIED, 1, True),
    ],
)
async def test_a_worker_outlives_an_engine_that_comes_back(
    monkeypatch: pytest.MonkeyPatch, error: EngineDead, how: HandOver, crashes: int | None, stops: bool
) -> None:
    found: list[Any] = []
    stopped: list[bool] = []

    async def release(handler: Any, run: Any, how: HandOver, crashes: int | None = None) -> None:
        found.append((how, crashes))

    async def written_already() -> None: ...

    monkeypatch.setattr(ErrorHandler, "_release", release)
    handler = ErrorHandler(None, None, 5, lambda: stopped.append(True))  # type: ignore[arg-type]
    row = SimpleNamespace(id="resp_1", attempt=1, crashes=0, history=[])
    run: Any = SimpleNamespace(row=row, commits=0, is_alone=False, last_chunk_written=written_already)
    await handler.handle(run, error)
    assert (found, bool(stopped)) == ([(how, crashes)], stops)
