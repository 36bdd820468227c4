"""Event streams without a server: what is sent, in which writes, and how streams end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

import pytest
from starlette.types import Message

from app.api.sse import EventStream
from app.bounds import Bound
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.responses.read.reader import Events, Pulse
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
        self.readers = Bound("readers", 1)
        self._pulses = pulses
        self._then_wait = then_wait

    async def open(self) -> Events:
        assert self.readers.held == 1
        await asyncio.sleep(0)
        return Events(self.pulses())

    async def pulses(self) -> AsyncGenerator[Pulse, None]:
        try:
            for pulse in self._pulses:
                yield pulse
            if self._then_wait:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def run(source: Source, wire: Wire, shutdown: asyncio.Event | None = None) -> None:
    stream = EventStream(source.open, source.readers, "default", shutdown or asyncio.Event())
    await stream({"type": "http"}, wire.receive, wire.send)


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


async def test_silence_becomes_a_comment_and_no_event() -> None:
    wire = Wire()
    await run(Source([None, chunk(0, 0)]), wire)
    assert wire.writes == [b": keepalive\n\n", chunk(0, 0).frames, frames.DONE]


async def test_a_reader_that_leaves_closes_the_source() -> None:
    wire, source = Wire(), Source([chunk(0, 0)], then_wait=True)
    running = asyncio.create_task(run(source, wire))
    await until(lambda: len(wire.writes) == 1)
    wire.left.set()
    await running
    assert source.closed
    assert frames.DONE not in wire.writes


async def test_a_source_that_fails_ends_the_stream_with_its_error() -> None:
    class Broken(Source):
        async def pulses(self) -> AsyncGenerator[Pulse, None]:
            yield chunk(0, 0)
            raise ValueError

    wire = Wire()
    with pytest.raises(ValueError):
        await run(Broken([]), wire)
    assert not wire.complete


@pytest.mark.parametrize("steps", range(12))
async def test_a_reader_gives_its_place_back_at_whatever_step_it_leaves(steps: int) -> None:
    wire, source = Wire(), Source([chunk(0, 0), None], then_wait=True)
    running = asyncio.create_task(run(source, wire))
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert source.readers.held == 0
