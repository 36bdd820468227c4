"""Claude Code: whole sessions of `claude -p` against `/v1/messages`, in the context of many local models.

Its instructions and tools take half of it. The scripted engine speaks.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from PIL import Image

from tests.support.claude_code import ClaudeCode, Session
from tests.support.installations import SMALL, scripted_with
from tests.support.line import Line
from tests.support.longhaul import Longhaul, send_all
from tests.support.tool_servers import call, turns
from tests.support.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.long

SEEING = SMALL.replace("context_length", "images = true\ncontext_length") + "keeps_prefixes = true\n"
BLIND = SMALL + "tokens_per_second = 300.0\n"
"""Takes no images, and is slow enough to be killed."""
POST = b"POST /v1/messages?beta=true "
DELTA = b'"type":"text_delta"'


@pytest.fixture(scope="module")
def small() -> Iterator[Longhaul]:
    """An installation whose silent streams soon show a sign of life."""
    with scripted_with(SEEING, LONGHAUL_KEEPALIVE_SECONDS="0.5") as installation:
        yield installation


@asynccontextmanager
async def listening(installation: Longhaul) -> AsyncIterator[Line]:
    line = Line(installation)
    await line.start()
    try:
        yield line
    finally:
        await line.close()


@pytest.fixture
async def line(small: Longhaul) -> AsyncIterator[Line]:
    async with listening(small) as opened:
        yield opened


def results(session: Session) -> list[str]:
    """What the tools returned, in short: the types of blocks, or the text."""
    contents = [block["content"] for block in session.blocks("tool_result")]
    return [each if isinstance(each, str) else ",".join(block["type"] for block in each) for each in contents]


async def test_a_session(tmp_path: Path, line: Line) -> None:
    """Thinks, reads a file, edits it, writes another by Bash, looks at a picture, loads a tool, and goes on in a second
    process; what was sent before comes from the prefix cache."""
    claude = ClaudeCode(tmp_path, line.root)
    note, image = claude.work / "note.txt", claude.work / "red.png"
    note.write_text("the secret is swordfish\n")
    Image.new("RGB", (64, 64), "red").save(image)
    script = turns(
        "<think>I look first.</think>" + call("Read", file_path=str(note)),
        call("Edit", file_path=str(note), old_string="swordfish", new_string="out"),
        call("Bash", command="echo copied > copy.txt; cat missing.txt"),
        call("Read", file_path=str(image)),
        call("ToolSearch", query="select:WebFetch"),
        "All done.",
    )
    first = await claude.say(script, "--allowedTools", "Bash", "Edit", "Read")
    assert (first.text, first.is_error) == ("All done.", False)
    assert [block["thinking"] for block in first.blocks("thinking")] == ["I look first."]
    read, edited, printed, seen, loaded = results(first)
    assert "the secret is swordfish" in read
    assert "updated successfully" in edited and note.read_text() == "the secret is out\n"
    assert "missing.txt" in printed and (claude.work / "copy.txt").read_text() == "copied\n"
    assert (seen, loaded) == ("image", "tool_reference")
    assert b'"is_error":true' in line.sent and b'"name":"WebFetch","description"' in line.sent

    again = await claude.say("/say Welcome back.", session=first.id)
    assert (again.text, again.is_error) == ("Welcome back.", False)
    used = again.events[-1]["usage"]
    cached = used["cache_read_input_tokens"]
    assert cached > 0.9 * (cached + used["input_tokens"])
    assert b"x-anthropic-billing-header" in line.sent
    assert b'"type":"error"' not in line.received


async def test_a_subagent(tmp_path: Path, line: Line) -> None:
    claude = ClaudeCode(tmp_path, line.root)
    asked = call("Agent", description="a task", prompt="/say from below", subagent_type="general-purpose")
    session = await claude.say(turns(asked, "All done."))
    assert (session.text, session.is_error) == ("All done.", False)
    below = [event for event in session.events if event.get("parent_tool_use_id") and event["type"] == "assistant"]
    assert "from below" in [
        block["text"] for event in below for block in event["message"]["content"] if "text" in block
    ]


LARGE = call("Bash", command="head -c 12000 /dev/zero | tr '\\0' x")
"""4,000 of the 16,000 tokens that are left."""


async def test_a_session_compacts_and_goes_on_beyond_the_context(tmp_path: Path, line: Line) -> None:
    """A prompt leaves room for its answer, so no answer fills the context, which would end the session."""
    claude = ClaudeCode(tmp_path, line.root)
    session = (await claude.say("/summary /say There were many outputs.")).id
    first = await claude.say(turns(*[LARGE] * 6, "All done."), "--allowedTools", "Bash", session=session)
    assert not first.is_error, first.text
    compacted = [event for event in first.events if event.get("subtype") == "compact_boundary"]
    assert [event["compact_metadata"]["trigger"] for event in compacted] == ["auto"]
    assert re.search(rb"prompt is too long: \d+ tokens > 24576 maximum", line.received)
    assert b"model_context_window_exceeded" not in line.received
    again = await claude.say("/say Still here.", session=session)
    assert "Still here." in again.text and not again.is_error  # It may have made room again, and said so in front.
    summary = rb"There were many outputs\.|Summary of: "  # What begins the session may have been too much to sum up.
    assert re.search(summary, line.sent.rpartition(POST)[2])


@pytest.fixture(scope="module")
def blind() -> Iterator[Longhaul]:
    with scripted_with(BLIND) as installation:
        yield installation


async def test_a_picture_that_the_model_cannot_see_ends_no_session(tmp_path: Path, blind: Longhaul) -> None:
    async with listening(blind) as line:
        claude = ClaudeCode(tmp_path, line.root)
        image = claude.work / "red.png"
        Image.new("RGB", (64, 64), "red").save(image)
        first = await claude.say(turns(call("Read", file_path=str(image)), "All done."), "--allowedTools", "Read")
        again = await claude.say("/say Still here.", session=first.id)
    assert (first.text, first.is_error, results(first)) == ("All done.", False, ["image"])
    assert (again.text, again.is_error) == ("Still here.", False)


async def test_a_worker_that_dies_in_the_middle_of_a_stream_is_not_noticed(tmp_path: Path, blind: Longhaul) -> None:
    async with listening(blind) as line:
        claude = ClaudeCode(tmp_path, line.root)
        saying = asyncio.create_task(claude.say("/count 400"))
        await until(lambda: line.received.count(DELTA) > 3 or saying.done())
        send_all(blind.named(["celeryd"]), signal.SIGKILL)
        session = await saying
    assert (session.text, session.is_error) == (" ".join(str(n + 1) for n in range(400)), False)
    assert line.sent.count(POST) == 1
    assert b'"type":"error"' not in line.received


async def test_what_is_refused_is_told_and_not_sent_again(tmp_path: Path, small: Longhaul, line: Line) -> None:
    """A model that is not there; and a response that an operator cancels while its stream is silent."""
    claude = ClaudeCode(tmp_path, line.root)
    lost = await claude.say("/say Hello.", "--model", "none")
    assert lost.is_error and "none" in lost.text
    running = asyncio.create_task(claude.say("/hang 2"))
    try:
        await until(lambda: running.done() or line.received.count(b"event: ping") > 3)
        posts = line.sent.count(POST)
        response_id = re.findall(rb"x-longhaul-response: (resp_[0-9a-f]+)", line.received)[-1].decode()
        with small.flower as flower:
            flower.post(f"/api/task/revoke/{response_id}", params={"terminate": "true"}).raise_for_status()
        session = await running
    finally:
        running.cancel()
    assert session.is_error and "cancelled" in session.text
    assert line.sent.count(POST) == posts


@pytest.fixture
def guarded() -> Iterator[Longhaul]:
    with scripted_with(SEEING, LONGHAUL_AUTH="keys") as installation:
        yield installation


async def test_a_limit_is_waited_for(tmp_path: Path, guarded: Longhaul) -> None:
    """Five requests a minute: the sixth waits, and the session goes on."""
    key = limited_key(guarded, 5)
    async with listening(guarded) as line:
        claude = ClaudeCode(tmp_path, line.root, key=key)
        script = turns(*[call("Bash", command="echo again")] * 6, "All done.")
        session = await claude.say(script, "--allowedTools", "Bash")
    assert (session.text, session.is_error) == ("All done.", False)
    assert b"HTTP/1.1 429 " in line.received and b"rate_limit_error" in line.received


def limited_key(installation: Longhaul, requests: int) -> str:
    """A key of a new project, which may make so many requests a minute."""
    admin = (installation.home / "admin-key").read_text().strip()
    headers, base = {"Authorization": f"Bearer {admin}"}, f"{installation.url}/v1/organization/projects"
    with httpx.Client(headers=headers, timeout=PATIENCE_SECONDS) as http:
        project = http.post(base, json={"name": "claude"}).raise_for_status().json()["id"]
        account = http.post(f"{base}/{project}/service_accounts", json={"name": "claude"}).raise_for_status().json()
        limit = http.get(f"{base}/{project}/rate_limits").raise_for_status().json()["data"][0]["id"]
        asked = {"max_requests_per_1_minute": requests}
        http.post(f"{base}/{project}/rate_limits/{limit}", json=asked).raise_for_status()
    key: str = account["api_key"]["value"]
    return key
