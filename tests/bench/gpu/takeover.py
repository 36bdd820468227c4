"""A takeover in the middle: the worker of many streams is killed, and another one goes on with them.

The next worker is a new process on the same GPU, so the pause that readers see is mostly the start of its engine. Then
every stream is compared with what is stored.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import httpx
import orjson

from tests.bench.contenders.longhaul import Longhaul
from tests.bench.contenders.models import NAME as MODEL
from tests.bench.plan import Cell
from tests.bench.processes import Role
from tests.bench.prompts import SHORT
from tests.faults.readers import take
from tests.faults.records import ReaderRecord
from tests.support.waiting import until

PATIENCE_SECONDS = 900.0
"""For the streams, with the start of an engine in their middle."""
EVENTS_BEFORE = 50
"""Of each stream before the worker is killed: about a second of 64 streams, each with 62 events a second at most."""


class TakeoverFailed(ValueError):
    """A stream did not end, or its reader saw other events than those that are stored."""


@dataclass(frozen=True, slots=True)
class Stream:
    """What a reader saw, live, and what the API replays afterwards."""

    live: ReaderRecord
    stored: ReaderRecord

    @property
    def ended(self) -> bool:
        return self.live.done and self.stored.done

    @property
    def lost(self) -> int:
        """Events that are stored and were not seen."""
        return len(set(self.stored.frames) - set(self.live.frames))

    @property
    def surplus(self) -> int:
        """Events that were seen twice, or that are not stored."""
        return len(self.live.frames) - len(set(self.live.frames) & set(self.stored.frames))

    @property
    def pause(self) -> float:
        """Seconds between the two events that are farthest apart."""
        return max(later - sooner for sooner, later in pairwise(self.live.arrivals))

    @property
    def tokens(self) -> int:
        """Output tokens that its last event counts."""
        data = self.live.frames[-1].partition(b"\ndata: ")[2]
        tokens: int = orjson.loads(data)["response"]["usage"]["output_tokens"]
        return tokens


async def measure(longhaul: Longhaul, cell: Cell) -> dict[str, Any]:
    """Kills the only worker of a started Longhaul and starts another one; returns a row. Raises TakeoverFailed."""
    limits = httpx.Limits(max_connections=cell.concurrency)
    async with httpx.AsyncClient(base_url=longhaul.url, timeout=PATIENCE_SECONDS, limits=limits) as client:
        live = [ReaderRecord() for _ in range(cell.concurrency)]
        reading = asyncio.gather(*(_ask(client, cell, record) for record in live))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await _until_all_run(reading, live)
                await _kill_worker(longhaul)
                await longhaul.begin(Role.WORKER)
                await reading
        except TimeoutError:
            unended = sum(not record.done for record in live)
            raise TakeoverFailed(f"takeover: {unended} of {len(live)} streams did not end") from None
        except httpx.HTTPError as error:
            raise TakeoverFailed(f"takeover: a reader lost its stream: {error!r}") from None
        finally:
            reading.cancel()
        stored = await asyncio.gather(*(_replayed(client, record) for record in live))
    return row_of(cell, [Stream(*pair) for pair in zip(live, stored, strict=True)])


def row_of(cell: Cell, streams: Sequence[Stream]) -> dict[str, Any]:
    """A row of the results. Raises TakeoverFailed unless every stream ended, whole, with all its tokens."""
    problems = [problem for stream in streams for problem in (*stream.live.problems, *stream.stored.problems)]
    lost, surplus = sum(stream.lost for stream in streams), sum(stream.surplus for stream in streams)
    if problems or lost or surplus or not all(stream.ended for stream in streams):
        first = problems[0] if problems else f"{lost} events are lost, {surplus} are repeated or not stored"
        raise TakeoverFailed(f"takeover: {first}")
    if any(stream.tokens != cell.tokens for stream in streams):
        raise TakeoverFailed(f"takeover: a stream does not have its {cell.tokens} tokens")
    pauses = [stream.pause for stream in streams]
    return {
        "what": "takeover",
        "streams": len(streams),
        "tokens of each": cell.tokens,
        "events": sum(len(stream.live.frames) for stream in streams),
        "lost or repeated": "none",
        "pause s (median)": round(median(pauses), 1),
        "longest pause s": round(max(pauses), 1),
    }


async def _ask(client: httpx.AsyncClient, cell: Cell, record: ReaderRecord) -> None:
    body = {"model": MODEL, "input": SHORT, "stream": True, "background": True}
    sampled = {"max_output_tokens": cell.tokens, "ignore_eos": True, "temperature": 0.0}
    async with client.stream("POST", "/v1/responses", json={**body, **sampled}) as answer:
        answer.raise_for_status()
        await take(answer, record)


async def _replayed(client: httpx.AsyncClient, live: ReaderRecord) -> ReaderRecord:
    """The whole log of the response that `live` is about, read again."""
    record = ReaderRecord()
    created = orjson.loads(live.frames[0].partition(b"\ndata: ")[2])
    path = f"/v1/responses/{created['response']['id']}"
    async with client.stream("GET", path, params={"stream": "true"}) as answer:
        answer.raise_for_status()
        await take(answer, record)
    return record


async def _until_all_run(reading: asyncio.Future[list[None]], live: Sequence[ReaderRecord]) -> None:
    """Raises TakeoverFailed if a stream is over before all of them run, and what a reader raised."""
    await until(
        lambda: reading.done() or all(len(record.frames) >= EVENTS_BEFORE for record in live), 2 * PATIENCE_SECONDS
    )
    if reading.done():
        reading.result()
    if any(record.terminal for record in live):
        raise TakeoverFailed("takeover: a stream was over before all of them ran")


async def _kill_worker(longhaul: Longhaul) -> None:
    """kill -9, and waits until its engine is gone, too: its memory on the GPU is free then."""
    os.kill(longhaul.below(Role.WORKER)[0], signal.SIGKILL)
    await longhaul.end(Role.WORKER)
