"""What an API process holds of a request once the request is stored: nothing, however long its client waits."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from app.api.limits import Limits
from app.protocol.events.chunk import Chunk
from app.protocol.requests.bodies.request import ResponseRequest
from app.store.database import Database
from app.store.rows import NewResponse
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.waiting import until

LARGE = "x" * 600_000


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    settings = settings_for(services, tmp_path, buffer_bytes=1024 * 1024, keepalive_seconds=0.2)
    async with serving(settings) as running:
        yield running


def limits_of(api: Api) -> Limits:
    limits: Limits = api.server.lifespan.state["limits"]
    return limits


def requests_in_memory() -> int:
    """With the events that repeat them: their instructions may have megabytes."""
    gc.collect()
    return sum(isinstance(each, ResponseRequest | NewResponse | Chunk) for each in gc.get_objects())


async def holds_nothing(api: Api) -> bool:
    return api.runtime.pubsub.reader_count == 1 and limits_of(api).bodies.held == 0 and requests_in_memory() == 0


async def test_a_stream_holds_nothing_of_its_request(api: Api) -> None:
    async with api.streaming(input=LARGE) as reader:
        assert (await reader.event() or {})["type"] == "response.created"
        await until(lambda: holds_nothing(api))


async def test_a_client_that_waits_for_the_object_holds_nothing(api: Api) -> None:
    waiting = asyncio.create_task(api.post(input=LARGE))
    await until(lambda: holds_nothing(api))
    waiting.cancel()


async def test_a_websocket_holds_nothing_of_its_request(api: Api) -> None:
    async with connect(f"{api.url.replace('http', 'ws', 1)}/v1/responses", max_size=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": LARGE}))
        assert json.loads(await socket.recv())["type"] == "response.created"
        await until(lambda: holds_nothing(api))


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
    await until(lambda: limits_of(api).bodies.held == 0)
    assert (await api.post(input=LARGE, background=True)).status_code == 200
