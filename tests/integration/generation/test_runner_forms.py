"""Reasoning, calls, stop strings and log probabilities through a whole worker, and across workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.protocol.status import Status
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support.logs import events_of, plain, whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.worker import stop_and_go, worker

Json = dict[str, Any]

WEATHER: Json = {"type": "function", "name": "weather", "description": None, "parameters": None, "strict": None}
SHELL: Json = {"type": "custom", "name": "shell", "description": None, "format": {"type": "text"}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}</tool_call>'
CUSTOM = '<tool_call>{"name": "shell", "arguments": {"input": "ls -l\\n\\u00e9\\ud83d\\udc4b"}}</tool_call>'
THOUGHT = "<think>\nLet me see: 你好.\n</think>\n\n"


def asking(text: str, **fields: Any) -> Json:
    return {"input": [message(f"/raw {text}")], "tools": [WEATHER, SHELL], **fields}


async def answer(
    db: Database, pubsub: PubSub, status: Status = Status.COMPLETED, **request: Any
) -> tuple[list[Json], Json]:
    """The output and the usage of a response that one worker runs to its end."""
    response_id = await queued(db, **request)
    async with worker(db, pubsub) as w:
        await w.run(response_id)
    return plain(await whole(db, response_id, status))


async def test_reasoning_text_and_calls_are_items_of_their_own(db: Database, pubsub: PubSub) -> None:
    output, usage = await answer(db, pubsub, **asking(f"{THOUGHT}Look:{CALL}{CUSTOM}"))
    thought, text, call, custom = output
    assert thought["content"] == [{"type": "reasoning_text", "text": "Let me see: 你好."}]
    assert [part["text"] for part in text["content"]] == ["Look:"]
    assert (call["type"], call["name"]) == ("function_call", "weather")
    assert json.loads(call["arguments"]) == {"city": "Zürich", "days": [1, 2]}
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "shell", "ls -l\né👋")
    assert usage["output_tokens_details"]["reasoning_tokens"] == len("\nLet me see: 你好.\n".encode()) + 1


async def test_a_call_cut_by_max_output_tokens_is_an_incomplete_call(db: Database, pubsub: PubSub) -> None:
    request = asking(CALL, max_output_tokens=60)
    output, _ = await answer(db, pubsub, Status.INCOMPLETE, **request)
    [call] = output
    assert (call["type"], call["status"]) == ("function_call", "incomplete")
    assert '{"city": "Zürich", "days": [1, 2]}'.startswith(call["arguments"])
    assert call["arguments"]


async def test_a_stop_string_completes_the_response_and_its_tokens_are_counted(db: Database, pubsub: PubSub) -> None:
    request = asking("one two three", extra={"stop": ["wo"]})
    output, usage = await answer(db, pubsub, **request)
    assert output[0]["content"][0]["text"] == "one t"
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
    assert await stop_and_go(db, pubsub, response_id, every=15) > 1
    assert plain(await whole(db, response_id)) == expected
