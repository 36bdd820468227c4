"""Granularity: which deltas wait in the buffer, and which are flushed at once."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.status import Status
from app.store.database import Database
from app.store.responses import logs
from app.streaming.pubsub import PubSub
from tests.support.logs import events_of, text_of, whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.waiting import until
from tests.support.worker import worker
from workers.generation import coalescing
from workers.generation.cancellation import Cancelled
from workers.generation.coalescing import Granularity
from workers.generation.outcome import Outcome, ResponseFailed

LONG = 3600.0
DELTAS = ("response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta")


async def committed_deltas(db: Database, response_id: str) -> list[str]:
    """The text of each committed delta."""
    return [event["delta"] for event in await events_of(db, response_id) if event["type"] in DELTAS]


def asking(text: str) -> list[dict[str, Any]]:
    return [message(text)]


async def test_without_an_interval_each_delta_is_committed_at_once(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/say abc"))
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    assert await committed_deltas(db, response_id) == ["a", "b", "c"]


async def test_the_first_token_is_flushed_at_once_and_the_others_together_with_the_end(
    db: Database, pubsub: PubSub
) -> None:
    response_id = await queued(db, input=asking("/say abcdefgh"))
    async with worker(db, pubsub, granularity=Granularity(interval=LONG), tokens_per_second=200.0) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert text_of(row) == "abcdefgh"
    first, *others = await committed_deltas(db, response_id)
    assert "abcdefgh".startswith(first)
    assert len(others) <= 1


async def test_a_response_cut_by_a_limit_loses_no_buffered_text(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/say abcdefgh"), max_output_tokens=6)
    async with worker(db, pubsub, granularity=Granularity(interval=LONG)) as w:
        assert await w.run(response_id) is Outcome.INCOMPLETE
    assert text_of(await whole(db, response_id, Status.INCOMPLETE)) == "abcdef"


async def test_a_stop_string_ends_a_response_before_the_interval(db: Database, pubsub: PubSub) -> None:
    """The scripted engine hangs after its text, so only the stop string can end the response."""
    response_id = await queued(db, input=asking("/hang 7"), extra={"stop": ["4"]})
    async with worker(db, pubsub, granularity=Granularity(interval=LONG)) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    assert text_of(await whole(db, response_id)) == "1 2 3 "


async def test_merged_deltas_keep_reasoning_calls_and_text_apart_and_in_order(db: Database, pubsub: PubSub) -> None:
    script = '/raw <think>hm hm</think>text<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    tools = [{"type": "function", "name": "f", "parameters": {}, "strict": False, "description": None}]
    seen = []
    for interval in (0.0, LONG):
        response_id = await queued(db, input=asking(script), tools=tools)
        async with worker(db, pubsub, granularity=Granularity(interval=interval)) as w:
            assert await w.run(response_id) is Outcome.COMPLETED
        row = await whole(db, response_id)
        assert row.output is not None
        seen.append(
            [{key: item[key] for key in ("type", "content", "arguments") if key in item} for item in row.output]
        )
    assert seen[0] == seen[1]
    assert [item["type"] for item in seen[0]] == ["reasoning", "message", "function_call"]


async def test_buffered_text_is_flushed_after_the_interval_while_the_model_pauses(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/hang 9"))
    async with worker(db, pubsub, granularity=Granularity(interval=0.05)) as w:
        job = w.start(response_id)

        async def all_of_it() -> bool:
            return "".join(await committed_deltas(db, response_id)) == "1 2 3 4 5"

        await until(all_of_it, what="the text so far")
        assert await job.stop(Cancelled.REVOKED) is Outcome.CANCELLED
    assert text_of(await whole(db, response_id, Status.CANCELLED)) == "1 2 3 4 5"


async def test_a_cancel_and_a_release_do_not_wait_for_the_interval(db: Database, pubsub: PubSub) -> None:
    ids = [await queued(db, input=asking("/hang 9")) for _ in range(2)]
    async with worker(db, pubsub, granularity=Granularity(interval=LONG)) as w:
        for response_id, why, outcome in zip(
            ids, (Cancelled.REVOKED, Cancelled.SHUTDOWN), (Outcome.CANCELLED, Outcome.RELEASED), strict=True
        ):
            job = w.start(response_id)

            async def begun(response_id: str = response_id) -> bool:
                return bool(await committed_deltas(db, response_id))

            await until(begun, what="the first token")
            assert await job.stop(why) is outcome
    await whole(db, ids[0], Status.CANCELLED)


async def test_another_worker_continues_behind_the_committed_text(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/count 400"))
    async with worker(db, pubsub, granularity=Granularity(interval=0.05), tokens_per_second=400.0) as w:
        job = w.start(response_id)

        async def some() -> bool:
            return len(await committed_deltas(db, response_id)) > 2

        await until(some, what="some events")
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
    async with worker(db, pubsub, granularity=Granularity(interval=0.05)) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    assert text_of(await whole(db, response_id)) == " ".join(str(number + 1) for number in range(400))


async def test_the_text_of_a_response_that_nobody_can_stream_comes_in_large_pieces(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalescing, "UNSTREAMED_INTERVAL_SECONDS", LONG)
    found = []
    for stream in (True, False):
        response_id = await queued(db, input=asking("/repeat 10 abcdefgh"), stream=stream, background=True)
        async with worker(db, pubsub, tokens_per_second=200.0) as w:
            assert await w.run(response_id) is Outcome.COMPLETED
        assert text_of(await whole(db, response_id)) == "abcdefgh" * 10
        found.append(await committed_deltas(db, response_id))
    streamed, unstreamed = found
    assert len(streamed) > len(unstreamed)
    assert len(unstreamed) <= 2


@pytest.mark.parametrize("stream", [True, False])
async def test_text_buffered_when_the_engine_failed_is_in_the_failed_response(
    db: Database, pubsub: PubSub, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalescing, "UNSTREAMED_INTERVAL_SECONDS", LONG)
    response_id = await queued(db, input=asking("/fail 9"), stream=stream, background=True)
    async with worker(db, pubsub, granularity=Granularity(interval=LONG), tokens_per_second=200.0) as w:
        with pytest.raises(ResponseFailed):
            await w.run(response_id)
    assert text_of(await whole(db, response_id, Status.FAILED)) == "1 2 3 4 5"


PER_TOKEN = Granularity(events_per_second=10.0, per_token=True)


async def test_each_token_may_be_an_event_though_several_are_committed_together(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/repeat 20 abc"), stream=True)
    async with worker(db, pubsub, granularity=PER_TOKEN, tokens_per_second=400.0) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert text_of(row) == "abc" * 20
    assert await committed_deltas(db, response_id) == list("abc" * 20)
    assert len((await logs.read(db, response_id)).chunks) < 40
    assert row.usage is not None and row.usage["output_tokens"] == 61


async def test_each_event_of_a_token_has_its_own_logprobs(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(
        db, input=asking("/say abcd"), stream=True, include=["message.output_text.logprobs"], top_logprobs=1
    )
    async with worker(db, pubsub, granularity=PER_TOKEN, tokens_per_delta=4) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    deltas = [event for event in await events_of(db, response_id) if event["type"] == DELTAS[0]]
    assert [[each["token"] for each in event["logprobs"]] for event in deltas] == [["a"], ["b"], ["c"], ["d"]]


async def test_an_event_per_token_ends_at_a_stop_string_in_the_middle_of_a_delta(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/say abcdefgh"), stream=True, extra={"stop": ["d"]})
    async with worker(db, pubsub, granularity=PER_TOKEN, tokens_per_delta=8) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert text_of(row) == "abc"
    assert row.usage is not None and row.usage["output_tokens"] == 4


async def test_the_events_of_an_unstreamed_response_are_merged_whatever_the_settings(
    db: Database, pubsub: PubSub
) -> None:
    response_id = await queued(db, input=asking("/repeat 20 abc"), stream=False)
    async with worker(db, pubsub, granularity=PER_TOKEN, tokens_per_second=400.0) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    assert len(await committed_deltas(db, response_id)) < 10


async def test_a_released_response_continues_with_an_event_per_token(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/say abcdefghijklmnopqrstuvwxyz"), stream=True)
    async with worker(db, pubsub, granularity=PER_TOKEN, tokens_per_second=50.0) as first:
        job = first.start(response_id)
        await until(lambda: has_deltas(db, response_id, 3), what="three tokens")
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
    async with worker(db, pubsub, granularity=PER_TOKEN) as second:
        assert await second.run(response_id) is Outcome.COMPLETED
    assert "".join(await committed_deltas(db, response_id)) == "abcdefghijklmnopqrstuvwxyz"
    assert len(await committed_deltas(db, response_id)) == 26


async def has_deltas(db: Database, response_id: str, count: int) -> bool:
    return len(await committed_deltas(db, response_id)) >= count
