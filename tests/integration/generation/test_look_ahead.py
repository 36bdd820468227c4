"""Responses that were taken ahead and wait for a slot: they are cancelled, released and continued as all others."""

from __future__ import annotations

from app.store.database import Database
from app.store.responses import endings
from app.streaming.pubsub import PubSub
from tests.support.logs import row_of, text_of, whole
from tests.support.requests import message
from tests.support.rows import queued, released
from tests.support.waiting import until
from tests.support.worker import Worker, worker
from workers.generation.outcome import Cancelled, Outcome


async def held(db: Database, w: Worker) -> None:
    """Takes the engine's only slot for good."""
    w.start(await queued(db, input=[message("/hang 1")]))
    await until(lambda: w.engine.running == 1)


async def test_the_next_response_is_ready_before_a_slot_frees(db: Database, pubsub: PubSub) -> None:
    async with worker(db, pubsub, max_num_seqs=1) as w:
        await held(db, w)
        tasks = {w.start(await queued(db, input=[message("/say Hello")])).task for _ in range(3)}
        await until(lambda: len(w.runner.slots.waiting) == 3)
        assert w.engine.running == 1
        w.jobs[0].cancel()
        assert [await task for task in tasks] == [Outcome.COMPLETED] * 3


async def test_a_response_that_waits_for_a_slot_is_cancelled_like_one_that_runs(db: Database, pubsub: PubSub) -> None:
    async with worker(db, pubsub, max_num_seqs=1) as w:
        await held(db, w)
        waiting = w.start(response_id := await queued(db))
        await until(lambda: len(w.runner.slots.waiting) == 1)
        await endings.cancel(db, response_id, None)
        assert await waiting.stop(Cancelled.REVOKED) is Outcome.CANCELLED
        assert w.engine.running == 1


async def test_a_response_that_waits_for_a_slot_is_handed_over_and_that_is_no_crash(
    db: Database, pubsub: PubSub
) -> None:
    async with worker(db, pubsub, max_num_seqs=1) as w:
        await held(db, w)
        waiting = w.start(response_id := await queued(db, input=[message("/say Hello")]))
        await until(lambda: len(w.runner.slots.waiting) == 1)
        assert await waiting.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
        assert await released(db) == [response_id]
    assert (await row_of(db, response_id)).crashes == 0
    async with worker(db, pubsub) as other:
        assert await other.run(response_id) is Outcome.COMPLETED
    assert text_of(await whole(db, response_id)) == "Hello"
