"""What an API process holds of a request, and for how long; and what large requests do on its event loop: nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from app.api import body
from app.api.holdings import ANSWER_BYTES, BODY_BYTES, ProcessBounds
from app.api.websocket import session as websocket_session
from app.bounds import Bound
from app.heavy import HEAVY
from app.protocol.events.chunk import Chunk
from app.protocol.requests.bodies.request import ResponseRequest
from app.responses.create.creator import ResponseCreator
from app.store.context import items
from app.store.database import Database
from app.store.responses.new_rows import NewResponse
from app.store.rows import ResponseRow
from tests.integration.api.common import answer_to, creation, event_of, socket_of
from tests.support.api import MODEL, Api
from tests.support.player import Player
from tests.support.waiting import until

LARGE = "x" * 600_000
SETTINGS = {"buffer_bytes": 1024 * 1024, "keepalive_seconds": 0.2}


def bounds_of(api: Api) -> ProcessBounds:
    bounds: ProcessBounds = api.server.lifespan.state["bounds"]
    return bounds


def requests_in_memory() -> int:
    """With the events that repeat them: their instructions may have megabytes."""
    gc.collect()
    return sum(isinstance(each, ResponseRequest | NewResponse | ResponseRow | Chunk) for each in gc.get_objects())


async def holds_nothing(api: Api) -> bool:
    return api.runtime.reader.readers.held == 1 and bounds_of(api).bodies.held == 0 and requests_in_memory() == 0


async def test_a_client_that_waits_holds_nothing_of_its_request(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": LARGE}]}
    await holds_nothing_while(api, api.post(input=LARGE))
    await holds_nothing_while(api, api.post(input=LARGE, stream=True))
    for stream in (False, True):
        await holds_nothing_while(api, api.client.post("/v1/chat/completions", json={**chat, "stream": stream}))
        post = partial(api.client.post, "/v1/responses", json={"model": MODEL, "input": LARGE, "stream": stream})
        headers = {"Idempotency-Key": f"stream {stream}".replace(" ", "-")}
        for _ in range(2):
            await holds_nothing_while(api, post(headers=headers))
        with monkeypatch.context() as late:  # A request that finds the first one's response when it is inserted.
            late.setattr(ResponseCreator, "find_repeated", AsyncMock(return_value=None))
            await holds_nothing_while(api, post(headers=headers))
    async with socket_of(api) as socket:
        assert (await answer_to(socket, creation(input=LARGE)))["type"] == "response.created"
        await until(lambda: holds_nothing(api))


async def holds_nothing_while(api: Api, asked: Coroutine[Any, Any, Any]) -> None:
    asking = asyncio.create_task(asked)
    await until(lambda: holds_nothing(api))
    asking.cancel()
    await asyncio.wait([asking])
    await until(lambda: api.runtime.reader.readers.held == 0)


async def test_messages_that_wait_on_websockets_count_however_small_and_stay_bytes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = watch(monkeypatch, websocket_session, "request_of")
    sent = creation(metadata={"a": "b" * 32_000})
    async with socket_of(api) as first, socket_of(api) as second:
        for socket in (first, second):
            assert (await answer_to(socket, creation()))["type"] == "response.created"
        for _ in range(20):
            await first.send(sent)
            await second.send(sent)
        refused = await event_of(second, "error")
        assert (refused["status"], refused["error"]["code"]) == (503, "too_many_large_requests")
        assert bounds_of(api).bodies.held > 1024 * 1024 - 3 * len(sent)
        assert len(decoding) == 2
        assert (await api.post(background=True)).status_code == 200
    await until(lambda: bounds_of(api).bodies.held == 0)


async def test_a_frame_counts_while_it_waits_to_be_read_and_no_longer_once_its_client_left(api: Api) -> None:
    go = threading.Event()
    busy = [asyncio.create_task(HEAVY.run(lambda: go.wait(60))) for _ in range(2)]
    try:
        async with socket_of(api) as socket:
            await socket.send(creation(input=LARGE))
            await until(lambda: waiting_for(HEAVY.bound) == 1)
            assert bounds_of(api).bodies.held > len(LARGE) - BODY_BYTES
        assert bounds_of(api).bodies.held > len(LARGE) - BODY_BYTES  # A thread still has it.
    finally:
        go.set()
    await asyncio.gather(*busy)
    await until(lambda: bounds_of(api).bodies.held == 0)


async def test_half_sent_bodies_beyond_the_budget_are_a_503_and_small_requests_pass(api: Api) -> None:
    port = int(api.url.rsplit(":", 1)[1])
    head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    halves = []
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"content-length: 4000000\r\n\r\n" + b" " * 800_000)
        halves.append((reader, writer))
    answers = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader, _ in halves]
    [refused], _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result().startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in refused.result()
    assert (await api.post(background=True)).status_code == 200
    for task, (_, writer) in zip(answers, halves, strict=True):
        task.cancel()
        writer.transport.abort()
    await asyncio.gather(*answers, return_exceptions=True)
    await until(lambda: bounds_of(api).bodies.held == 0)
    assert (await api.post(input=LARGE, background=True)).status_code == 200


def watch(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[bool]:
    """Returns a list that grows with every call: whether it was on the event loop."""
    on_loop: list[bool] = []
    called = getattr(owner, name)

    def watched(*arguments: Any) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return called(*arguments)

    monkeypatch.setattr(owner, name, watched)
    return on_loop


def waiting_for(bound: Bound) -> int:
    return sum(map(len, bound._lines.values()))


async def test_what_is_large_waits_until_there_is_room_and_gives_it_back(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bound is filled, something waits for it and has not begun, and goes on once the bound is free."""
    item = {"type": "message", "role": "user", "content": LARGE, "id": "msg_mine"}
    conversation = (await api.client.post("/v1/conversations", json={"items": [item]})).json()["id"]
    referring = [{"type": "item_reference", "id": "msg_mine"}]
    large, other = await api.background(input=LARGE), await api.background(instructions=LARGE)
    small = await api.background()
    bounds, get, post = bounds_of(api), api.client.get, api.client.post
    answers, accepting, brought = bounds.answers, bounds.accepting, api.runtime.conversations._references._brought
    reading, decoding, showing = (Database, "large_read"), (body, "decode_object"), (ResponseRow, "as_object")
    finding = (items, "loads")
    table: list[tuple[str, Bound, Any, Callable[[], Coroutine[Any, Any, httpx.Response]], bool]] = [
        ("a response", answers, reading, lambda: get(f"/v1/responses/{large}"), True),
        ("input items", answers, reading, lambda: get(f"/v1/responses/{large}/input_items"), True),
        ("items", answers, reading, lambda: get(f"/v1/conversations/{conversation}/items"), True),
        ("an item", answers, reading, lambda: get(f"/v1/conversations/{conversation}/items/msg_mine"), True),
        ("a cancelled response", answers, showing, lambda: post(f"/v1/responses/{other}/cancel"), False),
        ("a small request", accepting, decoding, lambda: api.post(background=True), True),
        ("a large request", accepting, decoding, lambda: api.post(input=LARGE, background=True), False),
        ("a referring request", brought, finding, lambda: api.post(input=referring, background=True), False),
        ("referring items", brought, finding, lambda: post("/v1/conversations", json={"items": referring}), False),
    ]
    for name, bound, watched, asked, on_loop in table:
        await waits_for_room(monkeypatch, name, bound, watched, asked, on_loop=on_loop)
    full = accepting.take(None, accepting.total)
    async with socket_of(api) as socket:
        await socket.send(creation(input=LARGE))
        await until(lambda: waiting_for(accepting) == 1)
        full.release()
        assert (await event_of(socket))["type"] == "response.created"
    await until(lambda: accepting.held == 0)

    full = answers.take(None, answers.total + ANSWER_BYTES)
    assert (await post(f"/v1/responses/{small}/cancel")).json()["status"] == "cancelled", "a small answer needs no room"
    full.release()


async def test_a_large_foreground_answer_is_made_once_there_is_room(
    api: Api, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = bounds_of(api).answers
    full = answers.take(None, answers.total + ANSWER_BYTES)
    asking = asyncio.create_task(api.post(instructions=LARGE))
    await player.answer("Hi")
    shown = watch(monkeypatch, ResponseRow, "as_object")
    await until(lambda: waiting_for(answers) == 1)
    assert not shown
    full.release()
    assert ((await asking).json()["instructions"], shown) == (LARGE, [False])
    await until(lambda: answers.held == 0)


async def waits_for_room(
    monkeypatch: pytest.MonkeyPatch, name: str, bound: Bound, watched: Any, asked: Callable[[], Any], *, on_loop: bool
) -> None:
    full = bound.take(None, bound.total + ANSWER_BYTES)
    with monkeypatch.context() as patched:
        calls = watch(patched, *watched)
        asking = asyncio.create_task(asked())
        await until(lambda: waiting_for(bound) == 1, what=f"{name} waits")
        assert not calls, name
        full.release()
        assert (await asking).status_code == 200, name
        assert set(calls) == {on_loop}, name
    await until(lambda: bound.held == 0, what=f"{name} gives its room back")


async def test_an_answer_whose_client_left_while_it_waited_for_room_counts_no_longer(api: Api) -> None:
    response_id = await api.background(input=LARGE)
    answers, others = bounds_of(api).answers, set(api.server.server_state.connections)
    full = answers.take(None, answers.total + ANSWER_BYTES)
    _, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]))
    writer.write(f"GET /v1/responses/{response_id} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    await until(lambda: waiting_for(answers) == 1)
    writer.write_eof()
    await until(lambda: api.server.server_state.connections <= others)
    full.release()
    await until(lambda: not api.server.server_state.tasks)
    assert answers.held == 0
    writer.close()


async def test_an_answer_counts_until_its_client_has_taken_it(api: Api) -> None:
    response_id = await api.background(input="x", instructions="x" * 6_000_000)
    _, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]), limit=1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    answers = bounds_of(api).answers
    writer.write(f"GET /v1/responses/{response_id} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    await until(lambda: answers.held > 0)
    for _ in range(20):
        await api.client.get("/health/live")
        assert answers.held > 0
    writer.transport.abort()
    await until(lambda: answers.held == 0)
