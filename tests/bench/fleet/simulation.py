"""Runs fleets of paper workers in a few processes, and compares what they used with what the model predicts."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from tests.bench.fleet.costs import Costs, Line
from tests.bench.fleet.meter import Used
from tests.bench.fleet.model import Fleet, Part, demand
from tests.bench.fleet.rig import FREE_CONNECTIONS, Rig
from tests.bench.fleet.rows import make_queued
from tests.bench.fleet.worker import CONNECTIONS, Counts, Squad, summed
from tests.bench.measuring_process import measuring_process
from tests.bench.numbers import quantiles
from tests.bench.processes import Role
from tests.bench.scale.setup import MIB, MeasurementFailed

PROCESSES = 2
SECONDS = 5.0
PATIENCE = 120.0
"""Seconds that a squad may take to be ready, and again to be done."""

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shape:
    """`rate`: steps of each worker per second."""

    workers: int
    streams: int
    rate: float


SHAPES = (Shape(4, 16, 5.0), Shape(16, 32, 4.0), Shape(64, 4, 2.0), Shape(64, 16, 1.0), Shape(8, 64, 50.0))
"""The last one asks for more than any small machine has."""


async def row(rig: Rig, costs: Costs, shape: Shape) -> Row:
    """Runs one fleet. That its responses are made and claimed is not measured. Raises MeasurementFailed."""
    _check_connections(shape)
    count = shape.workers * shape.streams
    ids = await make_queued(rig.db, count, f"resp_fleet{shape.workers}x{shape.streams}x{shape.rate:g}_")
    each = [ids[first : first + shape.streams] for first in range(0, count, shape.streams)]
    tokens = max(2, round(shape.rate * SECONDS * rig.size))
    async with AsyncExitStack() as stack:
        groups = [each[number::PROCESSES] for number in range(min(PROCESSES, shape.workers))]
        running = [await stack.enter_async_context(_squad(rig, Squad(group, shape.rate, tokens))) for group in groups]
        begun = time.perf_counter()
        async with rig.meter.measure() as used:
            found = await asyncio.gather(*(go() for go in running))
            seconds = time.perf_counter() - begun
        memory = rig.longhaul.memory()[Role.POSTGRES]
    return {**_compared(shape, costs, summed(found), used, seconds), "Postgres MiB": round(memory / MIB, 1)}


def _check_connections(shape: Shape) -> None:
    """A worker without a connection waits for one as it waits for Postgres: for ever."""
    wanted = shape.workers * CONNECTIONS
    if wanted > FREE_CONNECTIONS:
        raise MeasurementFailed(
            f"{shape.workers} workers take up to {wanted} connections, and Postgres has {FREE_CONNECTIONS} for them"
        )


def _compared(shape: Shape, costs: Costs, counts: Counts, used: Used, seconds: float) -> Row:
    """What was used, beside what the model says of a fleet whose streams had so many events as these."""
    if counts.refused:
        raise MeasurementFailed(f"{counts.refused} chunks were refused")
    chunks, streams = counts.chunks / seconds, shape.workers * shape.streams
    fleet = Fleet(
        shape.workers, shape.streams, chunks / streams, tokens=math.inf, events=0.0, readers=0.0, maintenance=0
    )
    nothing = Line(0.0, 0.0)
    predicted = demand(fleet, replace(costs, merge=nothing, merge_wal=nothing, idle=0.0))
    return {
        "workers": shape.workers,
        "streams each": shape.streams,
        "steps/s": shape.rate,
        "chunks/s required": streams * shape.rate,
        "chunks/s": round(chunks, 1),
        "tokens/chunk": round(counts.tokens / counts.chunks, 2),
        "commits/s": round(counts.commits / seconds, 1),
        "commits/s predicted": round(fleet.commits, 1),
        "wait for a commit p50 ms": quantiles(counts.waits)["p50"],
        "p95 ms": quantiles(counts.waits)["p95"],
        "Postgres cores": round(used.of(Role.POSTGRES) / seconds, 3),
        "Postgres cores predicted": round(predicted[Part.POSTGRES] + costs.finish * streams / seconds, 3),
        "WAL kB/s": round(used.wal / seconds / 1e3, 1),
        "WAL kB/s predicted": round(predicted[Part.WAL] / 1e3, 1),
        "Redis cores": round(used.of(Role.REDIS) / seconds, 4),
        "Redis cores predicted": round(predicted[Part.BROKER], 4),
    }


@asynccontextmanager
async def _squad(rig: Rig, squad: Squad) -> AsyncIterator[Callable[[], Awaitable[Counts]]]:
    """A process whose workers are ready. Yields a function that starts them and returns their counts."""
    urls = {"DATABASE_URL": rig.settings.database_url or "", "REDIS_URL": rig.settings.broker_url}
    async with measuring_process("tests.bench.fleet", MeasurementFailed, "a squad of workers", urls) as (
        measuring,
        process,
    ):

        async def go() -> Counts:
            return Counts(**orjson.loads(await _within(PATIENCE, "done", measuring.go())))

        await _within(PATIENCE, "ready", measuring.prepare(orjson.dumps(squad)))
        yield go
        measuring.close()
        await process.wait()


async def _within(seconds: float, what: str, work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise MeasurementFailed(f"a squad of workers is not {what} within {seconds:g} s") from None
