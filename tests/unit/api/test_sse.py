"""Event streams without a server: what is sent, in which writes, and how streams end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

import pytest
from starlette.types import Message

from app.api.shutdown import Shutdown
from app.api.sse import EventStream
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.responses.read.reader import Pulse
from tests.support.waiting import until


def chunk(first: int, last: int, final: bool = False) -> Chunk:
    events = [
        {"type": "response.output_text.delta", "sequence_number": n, "delta": "ä\n"} for n in range(first, last + 1)
    ]
    return Chunk("resp_1", first, last, 1, (), frames.encode_all(events), final)


class Wire:
    """The server's side of one request."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def start(self) -> Message:
        return self.sent[0]

    @property
    def writes(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:]]

    @property
    def complete(self) -> bool:
        return self.sent[-1].get("more_body") is False


class Source:
    """Yields the given pulses, then nothing; `closed` is set when its generator is closed."""

    def __init__(self, pulses: Iterable[Pulse], then_wait: bool = False) -> None:
        self.closed = False
        self._pulses = pulses
        self._then_wait = then_wait

    async def pulses(self) -> AsyncGenerator[Pulse, None]:
        try:
            for pulse in self._pulses:
                yield pulse
            if self._then_wait:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def run(source: Source, wire: Wire, shutdown: Shutdown | None = None) -> None:
    await EventStream(source.pulses(), shutdown or Shutdown())({"type": "http"}, wire.receive, wire.send)


async def test_a_stream_has_the_headers_of_an_event_stream() -> None:
    wire = Wire()
    await run(Source([]), wire)
    assert wire.start["status"] == 200
    assert dict(wire.start["headers"]) == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-store",
        b"x-accel-buffering": b"no",
    }


async def test_chunks_go_out_as_they_are_and_done_is_last() -> None:
    wire, chunks = Wire(), [chunk(0, 2), chunk(3, 3), chunk(4, 5, final=True)]
    await run(Source(chunks), wire)
    assert wire.writes == [*(part.frames for part in chunks), frames.DONE]
    assert wire.complete


async def test_every_write_holds_whole_events() -> None:
    wire = Wire()
    await run(Source([chunk(0, 2), None, chunk(3, 9)]), wire)
    assert all(write.endswith(b"\n\n") and write.startswith((b"event: ", b"data: ", b": ")) for write in wire.writes)


async def test_silence_becomes_a_comment_and_no_event() -> None:
    wire = Wire()
    await run(Source([None, chunk(0, 0)]), wire)
    assert wire.writes[0] == b": keepalive\n\n"


async def test_a_reader_that_leaves_closes_the_source() -> None:
    wire, source = Wire(), Source([chunk(0, 0)], then_wait=True)
    running = asyncio.create_task(run(source, wire))
    await until(lambda: len(wire.writes) == 1)
    wire.left.set()
    await running
    assert source.closed
    assert frames.DONE not in wire.writes


async def test_a_stopping_server_ends_the_stream_without_done() -> None:
    wire, source, shutdown = Wire(), Source([chunk(0, 0)], then_wait=True), Shutdown()
    running = asyncio.create_task(run(source, wire, shutdown))
    await until(lambda: len(wire.writes) == 1)
    shutdown.set()
    await running
    assert source.closed
    assert (wire.writes, wire.complete) == ([chunk(0, 0).frames, b""], True)


async def test_a_stream_that_begins_while_the_server_stops_ends_at_once() -> None:
    wire, source, shutdown = Wire(), Source([], then_wait=True), Shutdown()
    shutdown.set()
    await run(source, wire, shutdown)
    assert wire.complete


async def test_cancelling_the_request_closes_the_source() -> None:
    wire, source = Wire(), Source([chunk(0, 0)], then_wait=True)
    running = asyncio.create_task(run(source, wire))
    await until(lambda: len(wire.writes) == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert source.closed


async def test_a_source_that_fails_ends_the_stream_with_its_error() -> None:
    async def broken() -> AsyncGenerator[Pulse, None]:
        yield chunk(0, 0)
        raise ValueError

    wire = Wire()
    with pytest.raises(ValueError):
        await EventStream(broken(), Shutdown())({"type": "http"}, wire.receive, wire.send)
    assert not wire.complete
