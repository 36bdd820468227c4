"""Foreground responses when every slot is taken: a background response yields, and continues token-exact."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import Database
from app.store.queue import dispatch
from app.store.responses import claims, endings
from app.streaming.pubsub import PubSub
from tests.support.logs import events_of, row_of, text_of, whole
from tests.support.requests import message
from tests.support.rows import WORKER, alive, change, claim, claimed, in_foreground, queued, release_all, released
from tests.support.waiting import until
from tests.support.worker import Job, Worker, worker
from workers.generation import slots as slots_module
from workers.generation.outcome import Cancelled, Outcome

QUEUE = "model.scripted"
LONG = 200
SLOTS = 4


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "STEADY_SECONDS", 0.0)


async def full(db: Database, w: Worker, numbers: int = LONG, count: int = SLOTS) -> dict[str, Job]:
    """Long background responses in every slot that they may take."""
    jobs = {}
    for _ in range(count):
        response_id = await queued(db, input=[message(f"/count {numbers}")])
        jobs[response_id] = w.start(response_id)
    await generating(w, min(count, w.runner.slots.count - w.runner.slots.kept))
    return jobs


async def generating(w: Worker, count: int) -> None:
    """Waits until so many generate, and something of each is committed."""
    runs = w.runner.slots._generating
    await until(lambda: len(runs) == count and all(run.progress_at is not None for run in runs.values()))


async def yielded_of(db: Database, ids: Sequence[str]) -> list[str]:
    return [each for each in ids if (await row_of(db, each)).yields]


async def counted(db: Database, response_id: str, numbers: int = LONG) -> None:
    assert text_of(await whole(db, response_id)) == " ".join(map(str, range(1, numbers + 1)))


async def test_background_never_takes_the_last_slot_and_foreground_takes_it_at_once(
    db: Database, pubsub: PubSub
) -> None:
    async with worker(db, pubsub, max_num_seqs=16, tokens_per_second=50.0) as w:
        jobs = await full(db, w, count=16)
        assert await w.run(await in_foreground(db, "/say Hello")) is Outcome.COMPLETED
        assert await yielded_of(db, list(jobs)) == []
        for job in jobs.values():
            job.task.cancel()


async def test_a_response_yields_to_a_second_stream_and_continues_token_exact(db: Database, pubsub: PubSub) -> None:
    async with worker(db, pubsub, max_num_seqs=SLOTS, tokens_per_second=400.0) as w:
        jobs = await full(db, w)
        stream = w.start(await in_foreground(db, "/hang 1"))
        done, _ = await asyncio.wait([job.task for job in jobs.values()], return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [Outcome.YIELDED]
        (yielded,) = await yielded_of(db, list(jobs))
        row = await row_of(db, yielded)
        assert (row.status, row.worker, row.crashes, row.attempt) == (Status.IN_PROGRESS, None, 0, 1)
        assert await released(db) == [], "it waits in line, and is not sent at once"
        assert await dispatch.dispatch(db, QUEUE) is None, "no slot is free"
        await stream.stop(Cancelled.SHUTDOWN)
        messages = await dispatch.dispatch(db, QUEUE)
        assert [each.response_id for each in messages or ()] == [yielded]
        assert await w.run(yielded) is Outcome.COMPLETED
        await counted(db, yielded)
        assert (await row_of(db, yielded)).started_at == row.started_at


async def test_while_it_waits_its_run_timeout_stands_still(db: Database) -> None:
    response_id = await queued(db)
    await change(db, response_id, run_seconds=3600.0)
    row = await claim(db, response_id, WORKER)
    assert row is not None and await claims.yield_(db, response_id, 1, WORKER)
    await change(db, response_id, started_at=row.created_at)
    (waits,) = await db.execute(text("SELECT run_deadline, run_seconds FROM responses"))
    assert waits.run_deadline is None and 3590 < waits.run_seconds <= 3600
    await claim(db, response_id, WORKER)
    (left,) = await db.execute(text("SELECT extract(epoch FROM run_deadline - now()) FROM responses"))
    assert 3580 < left[0] <= 3600


async def test_yields_use_up_no_claims(db: Database) -> None:
    await alive(db)
    response_id = await queued(db)
    for attempt in range(1, 4):
        (row,) = await claims.claim_all(db, [(response_id, WORKER)], max_claims=1)
        assert row is not None
        assert await claims.yield_(db, response_id, attempt, WORKER)
        assert await endings.find_exhausted(db, 3, max_claims=1) == []


async def test_a_yield_of_what_another_has_changes_nothing(db: Database) -> None:
    """As after a cancel, a deletion, or a lease that was lost meanwhile."""
    response_id = (await claimed(db)).id
    assert not await claims.yield_(db, response_id, 2, WORKER)
    assert not await claims.yield_(db, response_id, 1, "another")
    await endings.cancel(db, response_id, None)
    assert not await claims.yield_(db, response_id, 1, WORKER)


async def test_a_cancel_in_the_middle_of_a_yield_wins(db: Database, pubsub: PubSub) -> None:
    async with worker(db, pubsub, max_num_seqs=1) as w:
        job = w.start(response_id := await queued(db, input=[message("/hang 1")]))
        await generating(w, 1)
        await endings.cancel(db, response_id, None)
        w.start(await in_foreground(db, "/hang 1"))
        assert await job.task is Outcome.CANCELLED


async def test_a_worker_that_dies_between_the_cancel_and_the_commit_of_a_yield_is_taken_over_token_exact(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, commit = 100, claims.yield_
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def late(*args: Any) -> bool:
        begun.set()
        await goes_on.wait()
        return await commit(*args)

    monkeypatch.setattr(claims, "yield_", late)
    async with worker(db, pubsub, max_num_seqs=1, tokens_per_second=40.0) as w, worker(db, pubsub) as other:
        job = w.start(response_id := await queued(db, input=[message(f"/count {numbers}")]))

        async def has_text() -> bool:
            return any(event["type"] == "response.output_text.delta" for event in await events_of(db, response_id))

        await until(has_text)
        w.start(await in_foreground(db, "/hang 1"))
        await begun.wait()
        await release_all(db, w.lease.worker)
        assert await other.run(response_id) is Outcome.COMPLETED
        goes_on.set()
        assert await job.task is Outcome.COMPLETED, "what the row says: its yield came too late"
    await counted(db, response_id, numbers)
    row = await row_of(db, response_id)
    assert (row.yields, row.crashes, row.attempt) == (0, 0, 2)
