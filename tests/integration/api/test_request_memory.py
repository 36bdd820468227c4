"""What an API process holds of a request, and for how long; and what large requests do on its event loop: nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from websockets.asyncio.client import connect

from app.api import body
from app.api.holdings import ANSWER_BYTES, BODY_BYTES, ProcessBounds
from app.api.websocket import session as websocket_session
from app.bounds import Bound
from app.heavy import HEAVY
from app.protocol.events.chunk import Chunk
from app.protocol.requests.bodies.request import ResponseRequest
from app.responses.create.creator import ResponseCreator
from app.responses.read import reader
from app.sizes import LARGE_BYTES
from app.store.context import items
from app.store.database import Database
from app.store.responses import logs, new_rows
from app.store.responses.new_rows import NewResponse
from app.store.rows import ResponseRow
from tests.support.api import MODEL, Api, Reader, serving, settings_for
from tests.support.player import Player
from tests.support.waiting import until

LARGE = "x" * 600_000


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    settings = settings_for(services, tmp_path, buffer_bytes=1024 * 1024, keepalive_seconds=0.2)
    async with serving(settings) as running:
        yield running


def bounds_of(api: Api) -> ProcessBounds:
    bounds: ProcessBounds = api.server.lifespan.state["bounds"]
    return bounds


def requests_in_memory() -> int:
    """With the events that repeat them: their instructions may have megabytes."""
    gc.collect()
    return sum(isinstance(each, ResponseRequest | NewResponse | ResponseRow | Chunk) for each in gc.get_objects())


async def holds_nothing(api: Api) -> bool:
    return api.runtime.reader.readers.held == 1 and bounds_of(api).bodies.held == 0 and requests_in_memory() == 0


async def test_a_stream_holds_nothing_of_its_request(api: Api) -> None:
    async with api.streaming(input=LARGE) as reader:
        assert (await reader.event() or {})["type"] == "response.created"
        await until(lambda: holds_nothing(api))


async def test_a_client_that_waits_for_the_object_holds_nothing(api: Api) -> None:
    waiting = asyncio.create_task(api.post(input=LARGE))
    await until(lambda: holds_nothing(api))
    waiting.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_request_that_waits_holds_nothing(api: Api, stream: bool) -> None:
    sent = {"model": MODEL, "messages": [{"role": "user", "content": LARGE}], "stream": stream}
    waiting = asyncio.create_task(api.client.post("/v1/chat/completions", json=sent))
    await until(lambda: holds_nothing(api))
    waiting.cancel()


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_request_that_waits_holds_nothing_of_the_response(
    api: Api, monkeypatch: pytest.MonkeyPatch, stream: bool, at_once: bool
) -> None:
    sent = {"model": MODEL, "input": LARGE, "stream": stream}
    post = partial(api.client.post, "/v1/responses", json=sent, headers={"Idempotency-Key": "a"})
    first = asyncio.create_task(post())
    await until(lambda: holds_nothing(api))
    first.cancel()
    await until(lambda: api.runtime.reader.readers.held == 0)
    if at_once:  # The second request finds the response of the first one only when it is inserted.
        monkeypatch.setattr(ResponseCreator, "find_repeated", AsyncMock(return_value=None))
    again = asyncio.create_task(post())
    await until(lambda: holds_nothing(api))
    again.cancel()


async def test_a_websocket_holds_nothing_of_its_request(api: Api) -> None:
    async with connect(f"{api.url.replace('http', 'ws', 1)}/v1/responses", max_size=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": LARGE}))
        assert json.loads(await socket.recv())["type"] == "response.created"
        await until(lambda: holds_nothing(api))


async def test_messages_that_wait_on_websockets_count_however_small_and_stay_bytes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding = watch(monkeypatch, websocket_session, "request_of")
    sent = json.dumps({"type": "response.create", "model": MODEL, "input": "x", "metadata": {"a": "b" * 32_000}})
    url = f"{api.url.replace('http', 'ws', 1)}/v1/responses"
    async with connect(url) as first, connect(url) as second:
        for socket in (first, second):
            await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "x"}))
            assert json.loads(await socket.recv())["type"] == "response.created"
        for _ in range(20):
            await first.send(sent)
            await second.send(sent)
        refused = json.loads(await second.recv())
        while refused["type"] != "error":
            refused = json.loads(await second.recv())
        assert (refused["status"], refused["error"]["code"]) == (503, "too_many_large_requests")
        assert bounds_of(api).bodies.held > 1024 * 1024 - 3 * len(sent)
        assert len(decoding) == 2
        assert (await api.post(background=True)).status_code == 200
    await until(lambda: bounds_of(api).bodies.held == 0)


async def test_a_frame_counts_while_it_waits_to_be_read_and_no_longer_once_its_client_left(api: Api) -> None:
    go = threading.Event()
    busy = [asyncio.create_task(HEAVY.run(lambda: go.wait(60))) for _ in range(2)]
    try:
        async with connect(f"{api.url.replace('http', 'ws', 1)}/v1/responses", max_size=None) as socket:
            await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": LARGE}))
            await until(lambda: len(HEAVY.bound._lines) == 1)
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


async def test_a_large_request_is_encoded_beside_the_event_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [
        watch(monkeypatch, ResponseRequest, "fingerprint"),
        watch(monkeypatch, ResponseRequest, "stored"),
        watch(monkeypatch, new_rows._Stored, "of"),
    ]
    body = {"model": MODEL, "input": LARGE, "background": True}
    answer = await api.client.post("/v1/responses", json=body, headers={"Idempotency-Key": "a"})
    assert (answer.status_code, calls) == (200, [[False]] * 3)
    async with connect(f"{api.url.replace('http', 'ws', 1)}/v1/responses", max_size=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": LARGE}))
        assert json.loads(await socket.recv())["type"] == "response.created"
    assert calls[1:] == [[False] * 2] * 2


async def test_a_few_items_of_many_parts_are_prepared_beside_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [watch(monkeypatch, ResponseRequest, "stored"), watch(monkeypatch, new_rows._Stored, "of")]
    parts = [{"type": "input_text", "text": "x"}] * 1000
    sent = [{"type": "message", "role": "user", "content": parts}] * 2
    assert (await api.post(input=sent, background=True)).status_code == 200
    assert calls == [[False]] * 2


async def test_large_stored_items_are_never_parsed_for_a_list_and_beside_the_event_loop_for_a_request(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = {"type": "message", "role": "user", "content": LARGE, "id": "msg_mine"}
    conversation = (await api.client.post("/v1/conversations", json={"items": [item]})).json()["id"]
    finding, encoding = watch(monkeypatch, items, "loads"), watch(monkeypatch, new_rows._Stored, "of")
    path = f"/v1/conversations/{conversation}/items"
    (listed,) = (await api.client.get(path)).json()["data"]
    assert (await api.client.get(f"{path}/msg_mine")).json() == listed
    assert listed["content"][0]["text"] == LARGE
    answer = await api.post(input=[{"type": "item_reference", "id": "msg_mine"}], background=True)
    assert answer.status_code == 200
    assert (finding, encoding) == ([False], [False])


@pytest.mark.parametrize("path", ["", "/input_items"])
async def test_a_large_answer_is_encoded_beside_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    response_id = await api.background(input=LARGE, instructions=LARGE)
    await api.client.post(f"/v1/responses/{response_id}/cancel")
    encoding = watch(monkeypatch, reader, "shown" if not path else "page_of")
    assert (await api.client.get(f"/v1/responses/{response_id}{path}")).status_code == 200
    assert encoding == [False]


@pytest.mark.parametrize("kind", ["response", "input_items", "items", "item"])
async def test_a_large_answer_is_read_once_there_is_room_for_it(
    api: Api, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    answers, reading = bounds_of(api).answers, []
    large_read = Database.large_read
    monkeypatch.setattr(Database, "large_read", lambda *args: reading.append(1) or large_read(*args))
    item = {"type": "message", "role": "user", "content": LARGE, "id": "msg_mine"}
    conversation = (await api.client.post("/v1/conversations", json={"items": [item]})).json()["id"]
    response_id = await api.background(input=LARGE)
    path = {
        "response": f"/v1/responses/{response_id}",
        "input_items": f"/v1/responses/{response_id}/input_items",
        "items": f"/v1/conversations/{conversation}/items",
        "item": f"/v1/conversations/{conversation}/items/msg_mine",
    }[kind]
    full = answers.take(None, answers.total + ANSWER_BYTES)
    asking = asyncio.create_task(api.client.get(path))
    await until(lambda: len(answers._lines) == 1)
    assert not reading
    full.release()
    assert (await asking).status_code == 200
    await until(lambda: answers.held == 0)
    assert reading


async def test_a_large_foreground_answer_is_made_beside_the_event_loop_once_there_is_room(
    api: Api, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = bounds_of(api).answers
    full = answers.take(None, answers.total + ANSWER_BYTES)
    waiting = asyncio.create_task(api.post(instructions=LARGE))
    await player.answer("Hi")
    encoding = watch(monkeypatch, ResponseRow, "as_object")
    await until(lambda: len(answers._lines) == 1)
    assert not encoding
    full.release()
    assert (await waiting).json()["instructions"] == LARGE
    assert encoding == [False]
    await until(lambda: answers.held == 0)


@pytest.mark.parametrize("sent", ["x", LARGE])
async def test_a_large_cancelled_response_is_shown_as_get_shows_it(
    api: Api, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    response_id, answers = await api.background(instructions=sent), bounds_of(api).answers
    full = answers.take(None, answers.total + ANSWER_BYTES)
    encoding = watch(monkeypatch, ResponseRow, "as_object")
    asking = asyncio.create_task(api.client.post(f"/v1/responses/{response_id}/cancel"))
    if sent == LARGE:
        await until(lambda: len(answers._lines) == 1)
        assert not encoding
        full.release()
    shown = (await asking).json()
    assert (shown["status"], shown["instructions"]) == ("cancelled", sent)
    assert encoding == [sent == "x"]
    full.release()
    await until(lambda: answers.held == 0)


async def test_a_repeated_request_for_events_needs_no_room_for_an_answer(api: Api) -> None:
    sent = {"model": MODEL, "input": LARGE, "background": True, "stream": True}
    answers = bounds_of(api).answers
    for _ in range(2):
        async with api.client.stream("POST", "/v1/responses", json=sent, headers={"Idempotency-Key": "a"}) as response:
            assert (await Reader(response).event() or {})["type"] == "response.created"
        if not answers.held:
            answers.take(None, answers.total + ANSWER_BYTES)


async def test_a_response_that_ends_while_it_is_read_counts_once(
    api: Api, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.background(input=LARGE)
    play = await player.begin()
    read_page, waits = logs.read_page, []
    wait_for = Bound.wait_for

    async def ended(*arguments: Any) -> Any:
        await (await play.said("Hi")).finished()
        return await read_page(*arguments)

    async def watched(bound: Bound, *arguments: Any) -> Any:
        waits.append(bound)
        return await wait_for(bound, *arguments)

    monkeypatch.setattr(logs, "read_page", ended)
    monkeypatch.setattr(Bound, "wait_for", watched)
    assert (await api.get(play.id)).json()["status"] == "completed"
    answers = bounds_of(api).answers
    assert waits.count(answers) == 2
    await until(lambda: answers.held == 0)


async def test_an_answer_whose_client_left_while_it_waited_for_room_counts_no_longer(api: Api) -> None:
    response_id = await api.background(input=LARGE)
    answers, others = bounds_of(api).answers, set(api.server.server_state.connections)
    full = answers.take(None, answers.total + ANSWER_BYTES)
    _, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]))
    writer.write(f"GET /v1/responses/{response_id} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    await until(lambda: len(answers._lines) == 1)
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


@pytest.mark.parametrize("sent", ["x", LARGE])
async def test_a_request_waits_for_its_turn_before_it_is_parsed(
    api: Api, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    accepting, decoding = bounds_of(api).accepting, watch(monkeypatch, body, "decode_object")
    full = accepting.take(None, accepting.total)
    asking = asyncio.create_task(api.post(input=sent, background=True))
    await until(lambda: len(accepting._lines) == 1)
    assert not decoding
    full.release()
    assert (await asking).status_code == 200
    assert decoding == [sent == "x"]
    assert accepting.held == 0


async def test_a_large_message_of_a_websocket_waits_for_its_turn(api: Api) -> None:
    accepting = bounds_of(api).accepting
    full = accepting.take(None, accepting.total)
    async with connect(f"{api.url.replace('http', 'ws', 1)}/v1/responses", max_size=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": LARGE}))
        await until(lambda: len(accepting._lines) == 1)
        full.release()
        assert json.loads(await socket.recv())["type"] == "response.created"
        await until(lambda: accepting.held == 0)


async def test_what_references_bring_in_counts_until_it_is_stored(api: Api) -> None:
    item = {"type": "message", "role": "user", "content": LARGE, "id": "msg_mine"}
    await api.client.post("/v1/conversations", json={"items": [item]})
    brought = api.runtime.conversations._references._brought
    full = brought.take(None, brought.total + LARGE_BYTES)
    sent = [{"type": "item_reference", "id": "msg_mine"}]
    for asked in (api.post(input=sent, background=True), api.client.post("/v1/conversations", json={"items": sent})):
        asking = asyncio.create_task(asked)
        await until(lambda: len(brought._lines) == 1)
        asking.cancel()
        await asyncio.wait([asking])
    asking = asyncio.create_task(api.post(input=sent, background=True))
    full.release()
    assert (await asking).status_code == 200
    await until(lambda: brought.held == 0)
