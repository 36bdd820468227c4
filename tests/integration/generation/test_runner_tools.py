"""Local tools, and the server's tool search, through a whole worker and across workers."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.status import Status
from app.store.database import Database
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from tests.support.logs import events_of, text_of, types, whole
from tests.support.refusals import LOCAL_OUTPUT, PATCH_OUTPUT, SHELL_OUTPUT
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.scripted.harmony import Harmony, said_in_harmony
from tests.support.tool_servers import call, turns
from tests.support.waiting import until
from tests.support.worker import worker
from workers.generation.outcome import Cancelled, Outcome
from workers.generation.turns.turn_loop import MAX_IDLE_TURNS

Json = dict[str, Any]

LOCAL: list[Json] = [
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "local_shell"},
]
PATCH: Json = {"type": "create_file", "path": "a.py", "diff": "+x"}
RUN = call("run_shell_commands", commands=["ls"])
CALLS = [
    (RUN, "shell_call", SHELL_OUTPUT, "a\nExit code: 0"),
    (call("apply_file_patch", **PATCH), "apply_patch_call", PATCH_OUTPUT, "Done."),
    (call("run_local_command", command=["ls"]), "local_shell_call", LOCAL_OUTPUT, "a"),
]


async def ran(db: Database, pubsub: PubSub, status: Status = Status.COMPLETED, **request: Any) -> ResponseRow:
    """A response that one worker runs to its end."""
    response_id = await queued(db, **request)
    async with worker(db, pubsub) as w:
        await w.run(response_id)
    return await whole(db, response_id, status)


# -- local tools -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "kind", "output", "shown"), CALLS, ids=[kind for _, kind, _, _ in CALLS])
async def test_a_call_of_a_local_tool_is_answered_in_the_next_response(
    db: Database, pubsub: PubSub, said: str, kind: str, output: Json, shown: str
) -> None:
    first = await ran(db, pubsub, input=[message(f"/raw Look:{said}")], tools=LOCAL)
    assert types(first) == ["message", kind]
    assert first.output is not None
    made = first.output[1]
    events = [event["type"] for event in await events_of(db, first.id) if event.get("item", {}).get("type") == kind]
    assert events == ["response.output_item.added", "response.output_item.done"]
    answer = {"id": "out_1", "status": "completed", **output, "call_id": made["call_id"]}
    second = await ran(db, pubsub, input=[answer], tools=LOCAL, previous_response_id=first.id)
    assert text_of(second) == f"The tool said: {shown}"


# -- tool search -----------------------------------------------------------------------------------------------

SEARCH: Json = {"type": "tool_search", "execution": "server", "description": None, "parameters": None}
WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "The forecast for a city.",
    "parameters": None,
    "strict": None,
    "defer_loading": True,
}
SEARCHING = call("tool_search", query="weather")
CALLING = call("get_weather", city="Paris")
TOOLS = [SEARCH, WEATHER]


async def test_the_server_searches_and_the_model_calls_what_it_found_in_one_response(
    db: Database, pubsub: PubSub
) -> None:
    row = await ran(db, pubsub, input=[message(turns(f"Let me see.{SEARCHING}", CALLING))], tools=TOOLS)
    assert types(row) == ["message", "tool_search_call", "tool_search_output", "function_call"]
    assert row.output is not None
    _, searched, found, called = row.output
    assert (searched["execution"], searched["call_id"], searched["arguments"]) == ("server", None, {"query": "weather"})
    assert (found["execution"], found["call_id"], found["tools"]) == ("server", None, [WEATHER])
    assert (called["namespace"], called["name"], called["status"]) == ("get_weather", "get_weather", "completed")
    again = await ran(db, pubsub, input=[message(f"/raw {CALLING}")], tools=TOOLS, previous_response_id=row.id)
    assert types(again) == ["function_call"]


async def test_the_model_goes_on_after_a_search_that_found_nothing(db: Database, pubsub: PubSub) -> None:
    script = turns(call("tool_search", query="xylophone"), "Found: {results}")
    row = await ran(db, pubsub, input=[message(script)], tools=TOOLS)
    assert types(row) == ["tool_search_call", "tool_search_output", "message"]
    assert text_of(row) == "Found: No tools were found."


async def test_searches_without_end_end_the_response(db: Database, pubsub: PubSub) -> None:
    row = await ran(db, pubsub, input=[message(turns(SEARCHING))], tools=TOOLS)
    found = types(row)
    assert found == ["tool_search_call", "tool_search_output"] * (MAX_IDLE_TURNS + 1) + ["message"]


async def test_a_call_beside_a_search_waits_for_the_client(db: Database, pubsub: PubSub) -> None:
    ready = {**WEATHER, "name": "ready", "defer_loading": False}
    row = await ran(db, pubsub, input=[message(f"/raw {SEARCHING}{call('ready')}")], tools=[*TOOLS, ready])
    assert types(row) == ["tool_search_call", "tool_search_output", "function_call"]


async def test_a_search_is_not_made_again_by_another_worker(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=[message(turns(SEARCHING, "/count 200"))], tools=TOOLS)
    async with worker(db, pubsub, tokens_per_second=200.0) as first:
        job = first.start(response_id)
        await until(lambda: _has_text(db, response_id))
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
    async with worker(db, pubsub) as second:
        assert await second.run(response_id) is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert types(row) == ["tool_search_call", "tool_search_output", "message"]
    assert text_of(row) == " ".join(map(str, range(1, 201)))


async def _has_text(db: Database, response_id: str) -> bool:
    return any(event["type"] == "response.output_text.delta" for event in await events_of(db, response_id))


async def test_a_harmony_model_reads_what_a_search_found_and_calls_it(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def calling(name: str, arguments: str) -> str:
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"

    engine = Harmony(calling("tool_search", '{"query": "weather"}'), calling("get_weather", '{"city": "Paris"}'))
    row = await said_in_harmony(db, pubsub, engine, monkeypatch, tools=TOOLS)
    assert types(row) == ["tool_search_call", "tool_search_output", "function_call"]
    first, second = engine.prompts
    assert "type get_weather = (" not in first
    assert "type get_weather = (" in second
    assert second.endswith(
        "<|start|>functions.tool_search to=assistant<|channel|>commentary<|message|>"
        "These tools can be called now: get_weather.<|end|><|start|>assistant"
    )
