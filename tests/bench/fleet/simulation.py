"""Fleets that run: paper workers in a few processes, and what they used beside what the model says they would.

This file is also the program of such a process: `python -m tests.bench.fleet.simulation`, one `Squad` as JSON on its
standard input. It says `ready` when all is claimed, begins at `go`, says what it has counted, and ends with its input.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson

from config.settings import CHECKOUT, load_settings
from tests.bench.fleet.costs import Costs, Line
from tests.bench.fleet.meter import Used
from tests.bench.fleet.model import Fleet, Part, demand
from tests.bench.fleet.place import Yard, model
from tests.bench.fleet.rows import make_queued
from tests.bench.fleet.worker import Counts, PaperWorker
from tests.bench.numbers import quantiles
from tests.bench.processes import Role
from tests.bench.scale.place import MIB, WentWrong

PROCESSES = 2
POOL = 2
"""Connections of a worker: one proves that it is there."""
SECONDS = 6.0
LINE_BYTES = 1 << 24

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """`rate`: steps of each worker per second."""

    workers: int
    streams: int
    rate: float


SHAPES = (Shape(4, 16, 5.0), Shape(16, 16, 2.0), Shape(64, 4, 2.0), Shape(64, 16, 1.0), Shape(8, 64, 50.0))
"""The last one asks for more than any small machine has."""


@dataclass(frozen=True, slots=True)
class Squad:
    """The workers of one process, and what they are to do."""

    ids: list[list[str]]
    """For each worker."""
    rate: float
    tokens: int


async def row(yard: Yard, costs: Costs, shape: Shape) -> Row:
    """Runs one fleet. That its responses are made and claimed is not measured."""
    count = shape.workers * shape.streams
    ids = await make_queued(yard.db, count, f"resp_fleet{shape.workers}x{shape.streams}x{shape.rate:g}_")
    each = [ids[first : first + shape.streams] for first in range(0, count, shape.streams)]
    tokens = max(2, round(shape.rate * SECONDS * yard.size))
    async with AsyncExitStack() as stack:
        groups = [each[number::PROCESSES] for number in range(min(PROCESSES, shape.workers))]
        running = [await stack.enter_async_context(_squad(yard, Squad(group, shape.rate, tokens))) for group in groups]
        begun = time.perf_counter()
        async with yard.meter.measure() as used:
            found = await asyncio.gather(*(go() for go in running))
            seconds = time.perf_counter() - begun
        memory = yard.longhaul.memory()[Role.POSTGRES]
    return {**_compared(shape, costs, _summed(found), used, seconds), "Postgres MiB": round(memory / MIB, 1)}


def _compared(shape: Shape, costs: Costs, counts: Counts, used: Used, seconds: float) -> Row:
    """What was used, beside what the model says of a fleet whose streams had so many events as these."""
    if counts.refused:
        raise WentWrong(f"{counts.refused} chunks were refused")
    chunks, streams = counts.chunks / seconds, shape.workers * shape.streams
    fleet = Fleet(shape.workers, shape.streams, chunks / streams, tokens=math.inf, readers=0.0, maintenance=0)
    nothing = Line(0.0, 0.0)
    said = demand(fleet, replace(costs, merge=nothing, merge_wal=nothing, idle=0.0))
    return {
        "workers": shape.workers,
        "streams each": shape.streams,
        "steps/s": shape.rate,
        "chunks/s asked for": streams * shape.rate,
        "chunks/s": round(chunks, 1),
        "commits/s": round(counts.commits / seconds, 1),
        "commits/s predicted": round(fleet.commits, 1),
        "wait for a commit p50 ms": quantiles(counts.waits)["p50"],
        "p95 ms": quantiles(counts.waits)["p95"],
        "Postgres cores": round(used.of(Role.POSTGRES) / seconds, 3),
        "Postgres cores predicted": round(said[Part.POSTGRES] + costs.finish * streams / seconds, 3),
        "WAL kB/s": round(used.wal / seconds / 1e3, 1),
        "WAL kB/s predicted": round(said[Part.WAL] / 1e3, 1),
        "Redis cores": round(used.of(Role.REDIS) / seconds, 4),
        "Redis cores predicted": round(said[Part.REDIS], 4),
    }


def _summed(found: Sequence[Counts]) -> Counts:
    whole = Counts()
    for each in found:
        whole.commits += each.commits
        whole.chunks += each.chunks
        whole.tokens += each.tokens
        whole.refused += each.refused
        whole.waits += each.waits
    return whole


@asynccontextmanager
async def _squad(yard: Yard, squad: Squad) -> AsyncIterator[Callable[[], Awaitable[Counts]]]:
    """A process whose workers are ready; what is given lets them begin, and returns what they counted."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=CHECKOUT,
        env={**os.environ, "DATABASE_URL": yard.settings.database_url or "", "REDIS_URL": yard.settings.broker_url},
        limit=LINE_BYTES,
    )
    assert process.stdin and process.stdout
    reader, writer = process.stdout, process.stdin

    async def line() -> bytes:
        if not (said := await reader.readline()):
            raise WentWrong(f"a squad of workers ended with status {await process.wait()}")
        return said

    async def go() -> Counts:
        writer.write(b"go\n")
        return Counts(**orjson.loads(await line()))

    try:
        writer.write(orjson.dumps(squad) + b"\n")
        await line()
        yield go
        writer.close()
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# -- the process of a squad --------------------------------------------------------------------------------------


async def _work() -> None:
    loop = asyncio.get_running_loop()

    async def heard() -> bytes:
        return await loop.run_in_executor(None, sys.stdin.buffer.readline)

    squad, settings = Squad(**orjson.loads(await heard())), load_settings()
    workers = [PaperWorker(settings.database_dsn, settings.broker_url, model(), POOL) for _ in squad.ids]
    try:
        for worker, ids in zip(workers, squad.ids, strict=True):
            await worker.start(ids)
        _say(b"ready")
        if await heard():
            late = 1 / squad.rate / len(workers)
            await asyncio.gather(*(each.run(squad.rate, squad.tokens, n * late) for n, each in enumerate(workers)))
            _say(orjson.dumps(_summed([worker.counts for worker in workers])))
            await heard()  # the connections stay until all is measured
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_work())
