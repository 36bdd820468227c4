"""Reasoning, calls, stop strings and log probabilities through a whole worker, and across workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.protocol.status import Status
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support.logs import events_of, whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.waiting import until
from tests.support.worker import worker
from workers.generation.cancellation import Cancelled
from workers.generation.outcome import Outcome

Json = dict[str, Any]

WEATHER: Json = {"type": "function", "name": "weather", "description": None, "parameters": None, "strict": None}
SHELL: Json = {"type": "custom", "name": "shell", "description": None, "format": {"type": "text"}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}</tool_call>'
CUSTOM = '<tool_call>{"name": "shell", "arguments": {"input": "ls -l\\n\\u00e9\\ud83d\\udc4b"}}</tool_call>'
THOUGHT = "<think>\nLet me see: 你好.\n</think>\n\n"


def asking(text: str, **fields: Any) -> Json:
    return {"input": [message(f"/raw {text}")], "tools": [WEATHER, SHELL], **fields}


def plain(output: list[Json]) -> list[Json]:
    """The output without ids, which are derived from the response's id."""
    return [
        {key: value for key, value in item.items() if key not in ("id", "call_id")} | {"content": item.get("content")}
        for item in output
    ]


async def answer(db: Database, pubsub: PubSub, status: Status = Status.COMPLETED, **request: Any) -> tuple[Json, Json]:
    """The output and the usage of a response that one worker runs to its end."""
    response_id = await queued(db, **request)
    async with worker(db, pubsub) as w:
        await w.run(response_id)
    row = await whole(db, response_id, status)
    assert row.output is not None
    assert row.usage is not None
    return {"output": plain(row.output)}, row.usage


async def test_reasoning_text_and_calls_are_items_of_their_own(db: Database, pubsub: PubSub) -> None:
    response, usage = await answer(db, pubsub, **asking(f"{THOUGHT}Look:{CALL}{CUSTOM}"))
    thought, text, call, custom = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Let me see: 你好."}]
    assert [part["text"] for part in text["content"]] == ["Look:"]
    assert (call["type"], call["name"]) == ("function_call", "weather")
    assert json.loads(call["arguments"]) == {"city": "Zürich", "days": [1, 2]}
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "shell", "ls -l\né👋")
    assert usage["output_tokens_details"]["reasoning_tokens"] == len("\nLet me see: 你好.\n".encode()) + 1


async def test_a_call_cut_by_max_output_tokens_is_an_incomplete_call(db: Database, pubsub: PubSub) -> None:
    request = asking(CALL, max_output_tokens=60)
    response, _ = await answer(db, pubsub, Status.INCOMPLETE, **request)
    [call] = response["output"]
    assert (call["type"], call["status"]) == ("function_call", "incomplete")
    assert '{"city": "Zürich", "days": [1, 2]}'.startswith(call["arguments"])
    assert call["arguments"]


async def test_a_stop_string_completes_the_response_and_its_tokens_are_counted(db: Database, pubsub: PubSub) -> None:
    request = asking("one two three", extra={"stop": ["wo"]})
    response, usage = await answer(db, pubsub, **request)
    assert response["output"][0]["content"][0]["text"] == "one t"
    assert usage["output_tokens"] == len("one two")


SEARCH: Json = {"type": "tool_search", "execution": "client", "description": None, "parameters": None}
SEARCHING = '<tool_call>{"name": "tool_search", "arguments": {"query": "weather"}}</tool_call>'


async def test_log_probabilities_are_in_events_and_items(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, **asking(f"{THOUGHT}Hé!", top_logprobs=2))
    async with worker(db, pubsub) as w:
        await w.run(response_id)
    row = await whole(db, response_id)
    assert row.output is not None
    part = row.output[1]["content"][0]
    assert bytes(byte for entry in part["logprobs"] for byte in entry["bytes"]).decode() == "Hé!"
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    deltas = [event for event in await events_of(db, response_id) if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == part["logprobs"]


REQUESTS: dict[str, Json] = {
    "everything": asking(f"{THOUGHT}Look: é👋{CALL}{CUSTOM}", reasoning={"effort": None, "summary": "auto"}),
    "a tool search": asking(f"{THOUGHT}Look:{SEARCHING}", tools=[SEARCH]),
    "a stop string": asking("one, two, three\n\nfour", extra={"stop": ["\n\n", "zz"]}),
    "log probabilities": asking(f"{THOUGHT}Look: é👋\n\n", top_logprobs=1, extra={"stop": ["\n\n\n"]}),
    "min_tokens": asking("abc", extra={"min_tokens": 40, "stop": ["abcab"]}),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_worker_that_stops_at_any_token_changes_nothing(db: Database, pubsub: PubSub, name: str) -> None:
    expected = await answer(db, pubsub, **REQUESTS[name])
    response_id = await queued(db, **REQUESTS[name])
    attempts, outcome = 0, Outcome.RELEASED
    while outcome is Outcome.RELEASED:
        attempts += 1
        before = len(await events_of(db, response_id))
        # The engine catches up with its rate: at the first attempt it must not be done before anybody has looked.
        async with worker(db, pubsub, tokens_per_second=5.0 if attempts == 1 else 150.0) as w:
            job = w.start(response_id)

            async def moved(seen: int = before + (6 if attempts == 1 else 15), task: Any = job.task) -> bool:
                return task.done() or len(await events_of(db, response_id)) >= seen

            await until(moved, what="a few more events")
            outcome = await job.stop(Cancelled.SHUTDOWN)
    row = await whole(db, response_id)
    assert row.output is not None
    assert ({"output": plain(row.output)}, row.usage) == expected
    assert attempts > 1
