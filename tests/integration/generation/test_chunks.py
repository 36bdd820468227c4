"""Chunks: which deltas are committed together, and which at once."""

from __future__ import annotations

import pytest

from app.protocol.status import Status
from app.store.database import Database
from app.store.responses import logs
from app.streaming.pubsub import PubSub
from tests.support.logs import events_of, text_of, whole
from tests.support.rows import queued
from tests.support.waiting import until
from tests.support.worker import worker
from workers.generation.outcome import Cancelled, Outcome, ResponseFailed
from workers.generation.turns.turn_generator import UNSTREAMED_TOKENS

DELTAS = ("response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta")


async def committed_deltas(db: Database, response_id: str) -> list[str]:
    """The text of each committed delta."""
    return [event["delta"] for event in await events_of(db, response_id) if event["type"] in DELTAS]


async def test_without_a_bound_each_delta_is_committed_at_once(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input="/say abc", stream=True)
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    assert await committed_deltas(db, response_id) == ["a", "b", "c"]
    assert len((await logs.read(db, response_id)).chunks) == 5  # queued, in progress with "a", "b", "c", the end


async def test_readers_learn_soon_that_a_response_is_in_progress_whose_first_token_takes_long(
    db: Database, pubsub: PubSub
) -> None:
    response_id = await queued(db, input="/hang 0", stream=True)
    async with worker(db, pubsub) as w:
        job = w.start(response_id)

        async def is_in_progress() -> bool:
            return [event["type"] for event in await events_of(db, response_id)][-1] == "response.in_progress"

        await until(is_in_progress, what="the event")
        assert await job.stop(Cancelled.REVOKED) is Outcome.CANCELLED
    await whole(db, response_id, Status.CANCELLED)


async def test_a_stop_string_in_the_middle_of_a_delta_ends_the_response(db: Database, pubsub: PubSub) -> None:
    """The scripted engine hangs after its text, so only the stop string can end the response."""
    response_id = await queued(db, input="/hang 7", extra={"stop": ["4"]})
    async with worker(db, pubsub, tokens_per_delta=16) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    assert text_of(await whole(db, response_id)) == "1 2 3 "


async def test_the_first_token_of_a_response_that_nobody_can_stream_is_committed_at_once_and_the_others_in_large_chunks(
    db: Database, pubsub: PubSub
) -> None:
    length = 3 * UNSTREAMED_TOKENS
    response_id = await queued(db, input=f"/repeat {length} a", stream=False, background=True)
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    assert text_of(await whole(db, response_id)) == "a" * length
    sizes = [len(delta) for delta in await committed_deltas(db, response_id)]
    assert sizes == [1, UNSTREAMED_TOKENS, UNSTREAMED_TOKENS, UNSTREAMED_TOKENS - 1]


@pytest.mark.parametrize("stream", [True, False])
async def test_all_text_until_the_engine_failed_is_in_the_failed_response(
    db: Database, pubsub: PubSub, stream: bool
) -> None:
    response_id = await queued(db, input="/fail 9", stream=stream, background=True)
    async with worker(db, pubsub, tokens_per_second=200.0) as w:
        with pytest.raises(ResponseFailed):
            await w.run(response_id)
    assert text_of(await whole(db, response_id, Status.FAILED)) == "1 2 3 4 5"
