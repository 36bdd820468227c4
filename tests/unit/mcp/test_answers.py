"""What is kept of large answers, before the MCP library reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx2
import mcp_types as types
import pytest

from app.bounds import Bound
from app.heavy import PROJECT
from app.sizes import LARGE_BYTES
from tests.support.waiting import until
from workers.formats.calls.hosted import HostedCall
from workers.mcp import session
from workers.mcp.answers import MAX_IMAGE_BYTES, MAX_TEXT_BYTES, shortened
from workers.mcp.results import ResultOptions, result_of

CALL = HostedCall("s__t", "{}", "mcp", "s", "t")
LONG = "é" * MAX_TEXT_BYTES


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def message(*content: Any, **more: Any) -> bytes:
    result = {"content": list(content), **more}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}, ensure_ascii=False).encode()


def shown(data: bytes) -> Any:
    """What the model gets of a message."""
    answer = types.CallToolResult.model_validate(json.loads(data)["result"], by_name=False)
    return result_of(CALL, answer, ResultOptions(100, images=True)).result


@pytest.mark.parametrize(
    "whole",
    [
        message(text(LONG), text("end")),
        message(*(text("é" * 99) for _ in range(9999))),
        message({"type": "resource", "resource": {"uri": "file:///x", "text": LONG}}),
        message(text(LONG), structuredContent={"result": LONG}),
        message(text("data:"), structuredContent={"rows": [LONG]}),
        message(text("x" * 99), structuredContent={"rows": [1]}),
    ],
)
def test_what_is_shortened_shows_the_model_the_same(whole: bytes) -> None:
    assert shown(bytes(shortened(whole))) == shown(whole)
    assert len(shortened(whole)) < 2 * MAX_TEXT_BYTES


def test_images_are_kept_while_there_is_room_and_sounds_are_not_beyond() -> None:
    picture = {"type": "image", "mimeType": "image/png", "data": "x" * (MAX_IMAGE_BYTES - 1)}
    small = {**picture, "data": "y"}
    sound = {"type": "audio", "mimeType": "audio/wav", "data": "z" * MAX_IMAGE_BYTES}
    kept = json.loads(shortened(message(picture, sound, picture, small)))["result"]["content"]
    assert [block["data"][:1] for block in kept] == ["x", "", "", "y"]


@pytest.mark.parametrize(
    "other",
    [
        b"no JSON",
        b"[1]",
        b'{"result": {"tools": []}}',
        b'{"result": {"content": [5]}}',
        b'{"error": {"code": 1}}',
        b"[" * 99999,
    ],
)
def test_any_other_message_stays_as_it_is(other: bytes) -> None:
    assert shortened(other) == other


class Body(httpx2.AsyncByteStream):
    """A body in these parts; `taken` counts those that were read."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = parts
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            self.taken += 1
            yield part


def read(body: Body, content_type: str, **headers: str) -> AsyncIterator[bytes]:
    response = httpx2.Response(200, headers={"content-type": content_type, **headers}, stream=body)
    return session._Answer(response).__aiter__()


def parts(data: bytes, size: int = 65536) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


async def test_small_events_pass_as_they_come_and_large_ones_are_shortened() -> None:
    small = b'event: message\r\ndata: {"a":\r\ndata: 1}\r\n\r\n'
    large = b"event: message\nid: 7\ndata: " + message(text(LONG)) + b"\n\n"
    stream = read(Body([small[:-1], small[-1:], *parts(large), small]), "text/event-stream")
    events = [event async for event in stream if event]
    assert events[0] == events[2] == small
    assert events[1].startswith(b"event: message\nid: 7\ndata:{") and events[1].endswith(b"}\n\n")
    assert len(events) == 3 and len(events[1]) < len(large)
    assert session.ANSWERS.held == 0


async def test_a_large_answer_waits_for_room_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_MESSAGE_BYTES", 1_000_000)
    monkeypatch.setattr(session, "ANSWERS", bound := Bound("answers", 1_000_000))
    first = bound.take("others", 1_000_000)
    PROJECT.set("mine")
    body = Body(parts(message(text("x" * 600_000))))

    async def answer() -> bytes:
        return b"".join([part async for part in read(body, "application/json")])

    waiting = asyncio.create_task(answer())
    await until(lambda: body.taken * 65536 > LARGE_BYTES)
    small = read(Body([b'{"a": 1}']), "application/json")
    assert [part async for part in small] == [b'{"a": 1}']  # meanwhile
    assert not waiting.done()
    first.release()
    assert shown(await waiting) == shown(message(text("x" * 600_000)))
    assert bound.held == 0


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "gzip"}])
async def test_an_answer_that_is_too_long_or_packed_is_an_error(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    monkeypatch.setattr(session, "MAX_MESSAGE_BYTES", 1_000_000)
    with pytest.raises(httpx2.StreamError):
        [part async for part in read(Body(parts(b"x" * 1_100_000)), "application/json", **headers)]
    assert session.ANSWERS.held == 0
