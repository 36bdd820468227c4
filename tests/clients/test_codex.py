"""Codex CLI: whole sessions of `codex exec`. Its prompt outgrows the demo model, so the scripted engine speaks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.clients.target import Target
from tests.support.codex import Codex
from tests.support.installations import SMALL, scripted_with
from tests.support.line import Line
from tests.support.longhaul import Longhaul
from tests.support.tool_servers import call, turns
from tests.support.waiting import until

PATCH = """*** Begin Patch
*** Update File: note.txt
@@
-the secret is swordfish
+the secret is out
*** End Patch"""
BOTH, TRANSPORTS = [False, True], ["http", "websocket"]
CREATED = b'"type":"response.created"'
UPGRADE = b"GET /v1/responses"


@pytest.fixture
async def line(scripted_target: Target) -> AsyncIterator[Line]:
    opened = Line(scripted_target.installation)
    await opened.start()
    yield opened
    await opened.close()


@pytest.mark.parametrize("websockets", BOTH, ids=TRANSPORTS)
async def test_a_session(tmp_path: Path, line: Line, websockets: bool) -> None:
    """Reads a file, patches it, prints a NUL, has a goal, calls an MCP tool, and goes on in a second process."""
    codex = Codex(tmp_path, line.url, websockets=websockets, mcp=True)
    (codex.work / "note.txt").write_text("the secret is swordfish\n")
    script = turns(
        "<think>I look first.</think>" + call("exec_command", cmd="cat note.txt"),
        call("apply_patch", input=PATCH),
        call("exec_command", cmd=r"printf 'a\000b'"),
        call("create_goal", objective="count to ten"),
        call("update_goal", status="complete"),
        call("mcp__tests__echo", text="hi"),
        "All done: {results}",
    )
    first = await codex.say(script)
    assert [item["text"] for item in first.items("reasoning")] == ["I look first."]
    read, printed = first.items("command_execution")
    assert (read["exit_code"], read["aggregated_output"]) == (0, "the secret is swordfish\n")
    assert printed["exit_code"] == 0
    (change,) = first.items("file_change")
    assert change["status"] == "completed"
    assert (codex.work / "note.txt").read_text() == "the secret is out\n"
    (tool,) = first.items("mcp_tool_call")
    assert (tool["server"], tool["tool"], tool["status"]) == ("tests", "echo", "completed")
    assert first.text.startswith("All done:")
    assert "echo hi" in first.text
    assert first.items("error") == []
    # The goal comes as an output that nothing called for.
    outputs = [each["payload"] for each in codex.written("response_item") if "namespace" in each["payload"]]
    assert ("function_call_output", "goal_objective", None) in [
        (each["type"], each["name"], each.get("call_id")) for each in outputs
    ]

    again = await codex.say("/say Welcome back.", thread=first.thread)
    assert (again.thread, again.text) == (first.thread, "Welcome back.")
    assert again.events[-1]["usage"]["input_tokens"] > 0
    assert (UPGRADE in line.sent) == websockets


async def test_codex_as_it_comes_needs_no_setting_of_the_server(tmp_path: Path, line: Line) -> None:
    """It sends a web search that must not access the web, with every request."""
    codex = Codex(tmp_path, line.url, options=())
    turn = await codex.say("/say Nice to meet you.")
    assert turn.text == "Nice to meet you."
    assert b'"external_web_access":false' in line.sent


@pytest.mark.parametrize("websockets", BOTH, ids=TRANSPORTS)
async def test_a_dropped_stream_is_repeated(tmp_path: Path, line: Line, websockets: bool) -> None:
    codex = Codex(tmp_path, line.url, websockets=websockets)
    line.cut_at = b"response.output_text.delta"
    turn = await codex.say("/count 30")
    assert line.cuts == 1
    assert turn.text.endswith("29 30")


@pytest.mark.parametrize("provider", ["longhaul", "openai"], ids=["by-itself", "by-the-api"])
async def test_codex_compacts(tmp_path: Path, line: Line, provider: str) -> None:
    """Its own provider, with only another base URL, uses a WebSocket, and the API compacts in the stream."""
    codex = Codex(tmp_path, line.url, provider=provider)
    first = await codex.say("/say Nice to meet you.")
    assert first.text == "Nice to meet you."
    again = await codex.say("/say Compacted.", "-c", "model_auto_compact_token_limit=1000", thread=first.thread)
    assert again.text == "Compacted."
    (compacted, *_) = codex.written("compacted")
    kept = [item["type"] for item in compacted["payload"].get("replacement_history") or ()]
    assert ("compaction" in kept) == (provider == "openai")


@pytest.fixture(scope="module")
def small() -> Iterator[Longhaul]:
    """An installation with a small context, whose silent streams soon show a sign of life."""
    with scripted_with(SMALL, LONGHAUL_KEEPALIVE_SECONDS="0.5") as installation:
        yield installation


@pytest.fixture
async def small_line(small: Longhaul) -> AsyncIterator[Line]:
    opened = Line(small)
    await opened.start()
    yield opened
    await opened.close()


LARGE = call("exec_command", cmd="head -c 40000 /dev/zero | tr '\\0' x")
"""Codex cuts its output to 8 KB, 2,700 tokens of the small context."""
LONG_SESSION = [
    turns(*[LARGE] * 6, "All done."),
    turns(LARGE, LARGE * 4, "All done."),
    "/say Four thousand bytes. " + "y" * 4000,
    turns(*[LARGE] * 5, LARGE * 3, "All done."),
    "/say Four thousand bytes. " + "y" * 4000,
]


@pytest.mark.long
@pytest.mark.parametrize("name", ["Longhaul", "OpenAI"], ids=["by-codex", "by-the-api"])
async def test_a_session_in_a_small_context_goes_on_beyond_it(tmp_path: Path, small_line: Line, name: str) -> None:
    """Instructions and tools take 7,300 of the 32,768 tokens; outputs and messages come to 55,000."""
    codex = Codex(tmp_path, small_line.url, name=name)
    thread = (await codex.say("/summary /say There were many outputs.")).thread
    for prompt in LONG_SESSION:
        turn = await codex.say(prompt, thread=thread)
        assert turn.items("error") == []
    assert len(codex.written("compacted")) > 1
    assert b"context_length_exceeded" not in small_line.received
    assert b"response.incomplete" not in small_line.received


@pytest.mark.long
@pytest.mark.parametrize("websockets", BOTH, ids=TRANSPORTS)
async def test_a_silent_response_is_waited_for_and_a_revoked_one_is_not_sent_again(
    tmp_path: Path, small: Longhaul, small_line: Line, websockets: bool
) -> None:
    line = small_line
    codex = Codex(tmp_path, line.url, websockets=websockets, idle_ms=4000)
    running = asyncio.create_task(codex.say("/hang 2", end="turn.failed"))
    try:
        # Each stands for half a second of silence, and Codex leaves after four.
        await until(lambda: running.done() or line.received.count(b'"type":"response.in_progress"') > 12)
        assert not running.done()
        created = line.received.count(CREATED)  # Over a WebSocket there is one that only prepares the prompt.
        response_id = re.findall(rb'"response":{"id":"(resp_[0-9a-f]+)"', line.received)[-1]
        with small.flower as flower:
            flower.post(f"/api/task/revoke/{response_id.decode()}", params={"terminate": "true"}).raise_for_status()
        turn = await running
    finally:
        running.cancel()
    assert "The response was cancelled." in turn.events[-1]["error"]["message"]
    assert line.received.count(CREATED) == created
