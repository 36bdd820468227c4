"""What becomes of a response whose run raised."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.store.guards import HandOver
from workers.engine.base import InvalidSampling, RequestAborted
from workers.generation.cancellation import Cancelled, current_job
from workers.generation.errors import ErrorHandler


@pytest.mark.parametrize(("crashes", "written"), [(0, "released"), (1, "invalid_prompt")])
async def test_an_engine_that_fails_twice_at_one_place_has_found_the_callers_fault(
    monkeypatch: pytest.MonkeyPatch, crashes: int, written: str
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

    row = SimpleNamespace(id="resp_1", attempt=2, crashes=crashes)
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
