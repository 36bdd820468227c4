"""Readers of a stream: they drop their connection at random, lose it to faults, and resume."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from random import Random

import httpx

from app.protocol.events.frames import DONE
from tests.faults.records import ReaderRecord

PAUSE_SECONDS = (0.05, 0.4)
_SEQUENCE = re.compile(rb'"sequence_number":(\d+)')
_TERMINAL = re.compile(rb"event: response\.(completed|incomplete|failed)\n")
_REPEAT = re.compile(rb"event: response\.(queued|in_progress)\n")
_CONNECTION_ERRORS = (httpx.TransportError, httpx.StreamError)


class Gone(Exception):
    """The API answered 404: there is no such response."""


async def frames_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Complete frames from the pieces that the network delivers; an incomplete last one is dropped."""
    buffer = b""
    async for piece in pieces:
        *whole, buffer = (buffer + piece).split(b"\n\n")
        for frame in whole:
            yield frame + b"\n\n"


async def take(response: httpx.Response, seen: ReaderRecord, max_events: int | None = None) -> None:
    """Reads a stream into `seen`, to its end or for `max_events` events."""
    seen.connections += 1
    async for frame in frames_of(response.aiter_raw()):
        if frame == DONE:
            seen.done = True
            return
        if frame.startswith(b":"):
            continue
        _record(frame, seen)
        if max_events is not None and (max_events := max_events - 1) <= 0:
            return


def _record(frame: bytes, seen: ReaderRecord) -> None:
    found = _SEQUENCE.search(frame)
    number = int(found[1]) if found else None
    if number == seen.next - 1 and _REPEAT.match(frame):
        return
    if number != seen.next:
        seen.problems.append(f"event {number} arrived instead of {seen.next}")
    if seen.terminal or seen.done:
        seen.problems.append(f"event {number} arrived after the end")
    seen.frames.append(frame)
    seen.arrivals.append(time.time())  # comparable with Postgres' clock
    seen.terminal = _TERMINAL.match(frame) is not None


async def resume(
    client: httpx.AsyncClient, urls: list[str], response_id: str, seen: ReaderRecord, random: Random, restless: float
) -> None:
    """Reads to the end of the stream, each time through a random API process.

    `restless` is the probability that a connection is dropped at a random event. Raises Gone for a 404.
    """
    while not (seen.done or seen.terminal):
        max_events = random.randint(1, 40) if random.random() < restless else None
        query = {"stream": "true"} | ({"starting_after": str(seen.next - 1)} if seen.next > 0 else {})
        url = f"{random.choice(urls)}/v1/responses/{response_id}"
        try:
            async with client.stream("GET", url, params=query) as response:
                if response.status_code == httpx.codes.OK:
                    await take(response, seen, max_events)
                elif response.status_code == httpx.codes.NOT_FOUND:
                    raise Gone
                elif response.status_code != httpx.codes.SERVICE_UNAVAILABLE or "retry-after" not in response.headers:
                    seen.problems.append(f"GET was answered with {response.status_code}")
        except _CONNECTION_ERRORS:
            pass
        await asyncio.sleep(random.uniform(*PAUSE_SECONDS))
