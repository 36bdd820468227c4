"""A WebSocket whose client is gone: what its streams still run."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.websockets import WebSocketDisconnect

from app.access.caller import ANYBODY
from app.access.charges import Charges
from app.api.holdings import BOUNDS, ProcessBounds, holdings_of
from app.api.shutdown import Shutdown
from app.api.websocket import streams
from app.api.websocket.session import Session
from app.bounds import Bound
from app.metrics.instruments import ApiMetrics
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.requests.bodies.request import ResponseRequest
from config.settings import Settings
from tests.support.waiting import PATIENCE_SECONDS, until


class GoneSocket:
    """A socket that cannot send any more. `receive` reports the disconnect once `seen` is set."""

    def __init__(self, *sent: dict[str, Any]) -> None:
        self._sent = [{"type": "websocket.receive", "text": json.dumps(each)} for each in sent]
        self.seen = asyncio.Event()
        self.refused = 0
        self.scope: dict[str, Any] = {"state": {BOUNDS: ProcessBounds.of(Settings())}}

    async def receive(self) -> dict[str, Any]:
        if self._sent:
            holdings_of(self.scope).hand_over(Bound("large requests", 1 << 20).take(None, 0))
            return self._sent.pop(0)
        await self.seen.wait()
        return {"type": "websocket.disconnect"}

    async def send_text(self, _: str) -> None:
        self.refused += 1
        raise WebSocketDisconnect


class Service:
    """Yields one event for each response."""

    def __init__(self) -> None:
        self.models: list[str] = []

    @asynccontextmanager
    async def attach(self, _: str, request: ResponseRequest, **__: Any) -> AsyncIterator[Any]:
        self.models.append(request.fields.model)

        async def beginning() -> Sequence[Chunk]:
            event = {"type": "response.created", "sequence_number": 0, "response": {}}
            return [Chunk("resp_1", 0, 0, 0, (), frames.encode_all([event]))]

        yield SimpleNamespace(beginning=beginning)


def creation(model: str, stream_id: str) -> dict[str, Any]:
    return {"type": "response.create", "model": model, "input": "Hi", "stream_id": stream_id}


SETTINGS = SimpleNamespace(max_body_bytes=10_000, omit_tools=())


def parts() -> dict[str, Any]:
    """What a session takes of the runtime beside its responses."""
    charges = Charges(cast(Any, None), None)
    return {"settings": SETTINGS, "shutdown": Shutdown(60), "charges": charges, "metrics": ApiMetrics()}


@pytest.mark.parametrize("active", [1, 16])
async def test_no_pending_request_starts_once_the_client_is_gone(monkeypatch: pytest.MonkeyPatch, active: int) -> None:
    monkeypatch.setattr(streams, "MAX_ACTIVE", active)
    socket, service = GoneSocket(creation("first", "a"), creation("never", "a"), creation("other", "b")), Service()
    runtime = SimpleNamespace(responses=service, **parts())
    running = asyncio.create_task(Session(cast(Any, socket), cast(Any, runtime), ANYBODY).run())
    await until(lambda: socket.refused)
    for _ in range(10):
        await asyncio.sleep(0)
    assert "never" not in service.models
    assert service.models[0] == "first"
    socket.seen.set()
    await running
    assert "never" not in service.models


class SlowSocket(GoneSocket):
    """A socket whose client reads nothing and is then cut off."""

    async def send_text(self, _: str) -> None:
        self.refused += 1
        await self.seen.wait()
        raise WebSocketDisconnect


@pytest.mark.parametrize("kind", [GoneSocket, SlowSocket])
async def test_a_session_that_ends_leaves_nothing_for_the_garbage_collector(kind: type[GoneSocket]) -> None:
    socket = kind(creation("one", "a"), creation("two", "b"))
    session = Session(cast(Any, socket), cast(Any, SimpleNamespace(responses=Service(), **parts())), ANYBODY)
    gc.collect()
    gc.disable()
    try:
        running = asyncio.create_task(session.run())
        await until(lambda: socket.refused)
        socket.seen.set()
        await running
        ended = weakref.ref(session)
        del session, running
        await asyncio.sleep(0)
        assert ended() is None
    finally:
        gc.enable()


async def test_a_socket_that_closes_waits_for_a_request_that_swallows_a_cancellation() -> None:
    """redis-py 8.1 does while it connects or sends. What waits behind it is forgotten at once."""
    bodies = Bound("large requests", 10)
    of_socket, cancelled = streams.Streams(10), asyncio.Event()

    async def run(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
        await asyncio.Event().wait()

    for _ in range(2):
        of_socket.add(None, streams.PendingRequest(b"", 5, 5, None, bodies.take(None, 5)), run)
    await asyncio.sleep(0)
    closing = asyncio.create_task(of_socket.close())
    await cancelled.wait()
    assert bodies.held == 5
    await asyncio.wait([closing], timeout=PATIENCE_SECONDS)
    assert closing.done()
    assert bodies.held == 0
