"""Compactions by a worker on real Postgres and Valkey: whole, cut, and continued by another worker at every point."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from app.protocol.status import Status
from app.protocol.tasks import COMPACT
from app.protocol.unsealing import SUMMARY_HEAD
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.responses import endings
from app.store.rows import ResponseRow
from app.store.sealing import SealedKind
from app.streaming.pubsub import PubSub
from tests.support.logs import events_of, text_of, types, whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.waiting import until
from tests.support.worker import items_of, worker
from workers.generation.outcome import Cancelled, Outcome, ResponseFailed

QUICK = {"tokens_per_delta": 50}
SLOW = {"tokens_per_second": 50.0}
"""So slow that no summary ends while a slow machine has yet to look at it: the engine catches up with its rate."""

Json = dict[str, Any]


def talk(*texts: str) -> list[Json]:
    """What users said, with an answer after each message."""
    return [item for text in texts for item in (message(text), message("Yes.", "assistant"))]


async def summary_of(db: Database, row: ResponseRow, index: int = 0) -> str:
    sealer = await SharedSealer(db).get("default")
    assert row.output is not None
    return sealer.unseal(SealedKind.COMPACTION, row.output[index]["encrypted_content"])


async def answered(db: Database, pubsub: PubSub, context_length: int | None = None, **request: Any) -> ResponseRow:
    response_id = await queued(db, **request)
    async with worker(db, pubsub, context_length=context_length, **QUICK) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    return await whole(db, response_id)


async def has_reached(db: Database, response_id: str, kind: str) -> None:
    """Waits until the log has an event of that type."""

    async def found() -> bool:
        return any(event["type"] == kind for event in await events_of(db, response_id))

    await until(found, what=f"{kind} of {response_id}")


async def stopped_at(db: Database, pubsub: PubSub, reached: Awaitable[None], response_id: str) -> list[Json]:
    """Runs a response until `reached`, and releases it. Returns its events so far."""
    async with worker(db, pubsub, **SLOW) as first:
        job = first.start(response_id)
        await reached
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
    return await events_of(db, response_id)


async def continued(
    db: Database, pubsub: PubSub, response_id: str, undisturbed: str, before: list[Json]
) -> tuple[ResponseRow, ResponseRow]:
    """Another worker goes on behind the events `before`, and runs the same request undisturbed. Returns both rows."""
    async with worker(db, pubsub) as second:
        await second.run(undisturbed)
        assert await second.run(response_id) is Outcome.COMPLETED
    row, expected = await whole(db, response_id), await whole(db, undisturbed)
    assert (await events_of(db, response_id))[: len(before)] == before
    assert (row.attempt, row.usage) == (2, expected.usage)
    assert (row.output or [])[0]["encrypted_content"] == (expected.output or [])[0]["encrypted_content"]
    return row, expected


async def test_a_compaction_is_one_item_that_holds_the_summary(db: Database, pubsub: PubSub) -> None:
    row = await answered(db, pubsub, input=talk("I am Ada.", "I like tea."), task=COMPACT)
    assert [item["type"] for item in row.output or ()] == ["compaction"]
    assert await summary_of(db, row) == "Summary of: I am Ada. | I like tea."
    assert row.usage is not None
    assert row.usage["output_tokens"] == len("Summary of: I am Ada. | I like tea.") + 1
    assert row.usage["input_tokens"] > 0


async def test_fields_about_the_answer_do_not_bend_the_summary(db: Database, pubsub: PubSub) -> None:
    about = {"max_output_tokens": 3, "extra": {"stop": ["tea"]}, "top_logprobs": 2}
    row = await answered(db, pubsub, input=talk("I like tea."), task=COMPACT, **about)
    assert await summary_of(db, row) == "Summary of: I like tea."


async def test_a_summary_ends_at_what_was_reserved_for_it(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=talk("I like tea."), task=COMPACT, summary_tokens=3)
    async with worker(db, pubsub, **QUICK) as w:
        with pytest.raises(ResponseFailed, match="did not end within 3 tokens"):
            await w.run(response_id)
    assert (await whole(db, response_id, Status.FAILED)).error["code"] == "context_length_exceeded"


async def test_a_summary_that_is_cancelled_leaves_an_empty_item(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=talk("/summary /hang 5"), task=COMPACT)
    async with worker(db, pubsub) as w:
        job = w.start(response_id)
        await has_reached(db, response_id, "response.compaction.compacting")
        await endings.cancel(db, response_id, None)
        assert await job.stop(Cancelled.REVOKED) is Outcome.CANCELLED
    (item,) = (await whole(db, response_id, Status.CANCELLED)).output or ()
    assert (item["status"], item["encrypted_content"]) == ("incomplete", "")


async def test_a_summary_that_is_cut_empty_or_broken_fails_the_response(db: Database, pubsub: PubSub) -> None:
    async with worker(db, pubsub, context_length=1024, **QUICK) as w:
        for summary, code in (
            ("/count 1000", "context_length_exceeded"),
            ("/say ", "server_error"),
            ("/fail 5", "server_error"),
        ):
            response_id = await queued(db, input=talk(f"/summary {summary}"), task=COMPACT)
            with pytest.raises(ResponseFailed):
                await w.run(response_id)
            error = (await whole(db, response_id, Status.FAILED)).error
            assert error is not None and error["code"] == code, summary


async def test_with_truncation_the_oldest_items_are_left_out_of_the_summary(db: Database, pubsub: PubSub) -> None:
    row = await answered(db, pubsub, 1024, input=talk("x" * 1000, "I like tea."), task=COMPACT, truncation="auto")
    assert await summary_of(db, row) == "Summary of: I like tea."


LONG = "I like tea." * 100
ASKED: Json = {"compaction": {"threshold": 1000}}


async def test_a_long_prompt_is_compacted_before_the_answer(db: Database, pubsub: PubSub) -> None:
    items = [message("Be kind.", "system"), *talk("I am Ada.", LONG), message("/say Hello!")]
    response_id = await queued(db, input=items, max_output_tokens=10, **ASKED)
    async with worker(db, pubsub, **QUICK) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
        row = await whole(db, response_id)
        summary = await summary_of(db, row)
        told = [("system", "Be kind."), ("user", SUMMARY_HEAD + summary), ("user", "/say Hello!")]
        prompt = await w.engine.render([{"role": role, "content": said} for role, said in told], {})
    assert types(row) == ["compaction", "message"]
    assert summary == f"Summary of: I am Ada. | {LONG} | /say Hello!"
    assert text_of(row) == "Hello!"
    assert row.usage is not None
    before, after = row.usage["input_tokens_details"]["input_tokens_per_turn"]
    assert (before > 1000, after) == (True, len(prompt))
    assert row.usage["output_tokens"] == len(summary) + 1 + len("Hello!") + 1


async def test_a_prompt_is_not_compacted_without_need(db: Database, pubsub: PubSub) -> None:
    prompts = {
        "a short prompt": [*talk("I am Ada."), message("/say Hello!")],
        "nothing before the newest message": [message(f"/say {LONG}")],
        "nothing but instructions before it": [message("Be kind.", "system"), message(f"/say {LONG}")],
    }
    async with worker(db, pubsub, **QUICK) as w:
        for name, items in prompts.items():
            response_id = await queued(db, input=items, **ASKED)
            assert await w.run(response_id) is Outcome.COMPLETED
            assert types(await whole(db, response_id)) == ["message"], name


async def test_the_newest_calls_stay_with_their_outputs(db: Database, pubsub: PubSub) -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "42"}
    row = await answered(db, pubsub, input=[*talk(LONG), message("Look."), call, output], **ASKED)
    assert types(row) == ["compaction", "message"]
    assert text_of(row) == "The tool said: 42"


@pytest.mark.parametrize("reached", ["response.compaction.compacting", "response.output_item.done"])
async def test_another_worker_goes_on_within_and_behind_the_summary(db: Database, pubsub: PubSub, reached: str) -> None:
    items = [*talk("/summary /count 40", LONG), message("/count 60")]
    undisturbed = await queued(db, input=items, **ASKED)
    response_id = await queued(db, input=items, **ASKED)
    before = await stopped_at(db, pubsub, has_reached(db, response_id, reached), response_id)
    row, expected = await continued(db, pubsub, response_id, undisturbed, before)
    assert types(row) == ["compaction", "message"]
    assert text_of(row) == text_of(expected) == " ".join(map(str, range(1, 61)))


async def test_what_continues_sees_nothing_from_before_the_compaction(db: Database, pubsub: PubSub) -> None:
    first = await queued(db, input=talk("I am Ada."))
    second = await queued(db, input=[*talk(LONG), message("/say Hello!")], previous_response_id=first, **ASKED)
    third = await queued(db, input=[message("And now?")], previous_response_id=second)
    async with worker(db, pubsub, **QUICK) as w:
        for response_id in (first, second, third):
            assert await w.run(response_id) is Outcome.COMPLETED
    seen = await items_of(db, await whole(db, third))
    texts = [item["content"][0]["text"] for item in seen]
    assert [item["role"] for item in seen] == ["user", "assistant", "user"]
    assert texts[0].startswith(f"{SUMMARY_HEAD}Summary of: I am Ada. | ")
    assert texts[1:] == ["Hello!", "And now?"]


async def test_a_context_that_outgrew_the_model_is_compacted_without_its_oldest_items(
    db: Database, pubsub: PubSub
) -> None:
    items = [*talk(LONG, LONG, "I am Ada."), message("/say Hello!")]
    row = await answered(db, pubsub, 1024, input=items, compaction={"threshold": 100_000})
    assert await summary_of(db, row) == "Summary of: I am Ada. | /say Hello!"
    assert text_of(row) == "Hello!"
