"""Journal transactions of 1 to 64 chunks, from 1 to 16 workers' journals at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

from app.store.responses import logs
from tests.bench.fleet.costs import MICRO, Line
from tests.bench.fleet.meter import Own
from tests.bench.fleet.rig import Rig
from tests.bench.fleet.rows import OPENED, SampleEvents, make_running
from tests.bench.numbers import quantiles
from tests.bench.processes import Role

CHUNKS = (1, 8, 32, 64)
JOURNALS = (1, 4, 16)
SECONDS = 1.0
BYSTANDERS = 4000
"""Responses in progress at other workers."""
BESIDE = 32
NOISE = 0.15
"""A difference below this share is none: the model multiplies it by the square of the fleet."""
WORKER = "paper"

Row = dict[str, Any]


async def rows(rig: Rig) -> list[Row]:
    """One for each size of a transaction and number of journals."""
    ids = await make_running(rig.db, max(CHUNKS) * max(JOURNALS), "resp_journal", WORKER)
    numbers = iter(range(OPENED, 1 << 30))
    await _committed(rig, ids, max(JOURNALS), 1, 0.2, numbers)  # every connection is made, every statement known
    return [await _row(rig, ids, journals, chunks, numbers) for chunks in CHUNKS for journals in JOURNALS]


async def bystander(rig: Rig) -> float:
    """Seconds of Postgres for a transaction, for each response in progress that is not in it.

    It should not look at any, not even where Postgres' statistics are of a time when nothing was in progress.
    """
    ids = await make_running(rig.db, BESIDE, "resp_beside", WORKER, noticed=False)
    numbers = iter(range(OPENED, 1 << 30))
    spent: list[float] = []
    for others in (0, rig.times(BYSTANDERS)):
        if others:
            await make_running(rig.db, others, "resp_other", "another", noticed=False)
        await _committed(rig, ids, 1, BESIDE, 0.2, numbers)
        row = await _row(rig, ids, 1, BESIDE, numbers)
        spent.append(row["Postgres µs/commit"] / MICRO)
    more = spent[1] - spent[0]
    return more / rig.times(BYSTANDERS) if more > NOISE * spent[0] else 0.0


def lines(found: Sequence[Row]) -> dict[str, Line]:
    """Prices of a transaction and of a chunk in it."""
    return {
        name: Line.through((row["chunks/commit"], row[column] * row["chunks/commit"] / by) for row in found)
        for name, column, by in (("commit", "Postgres µs/chunk", MICRO), ("commit_wal", "WAL B/chunk", 1.0))
    }


async def _row(rig: Rig, ids: Sequence[str], journals: int, chunks: int, numbers: Iterator[int]) -> Row:
    begun = time.perf_counter()
    async with rig.meter.measure() as used:
        waits = await _committed(rig, ids, journals, chunks, SECONDS * rig.size, numbers)
    spent, all_chunks = time.perf_counter() - begun, len(waits) * chunks
    return {
        "chunks/commit": chunks,
        "journals": journals,
        "commits/s": round(len(waits) / spent, 1),
        "chunks/s": round(all_chunks / spent, 1),
        "commit p50 ms": quantiles(waits)["p50"],
        "commit p95 ms": quantiles(waits)["p95"],
        "Postgres µs/commit": round(MICRO * used.of(Role.POSTGRES) / len(waits), 1),
        "Postgres µs/chunk": round(MICRO * used.of(Role.POSTGRES) / all_chunks, 2),
        "WAL B/chunk": round(used.wal / all_chunks, 1),
        "worker µs/chunk": round(MICRO * used.of(Own.SELF) / all_chunks, 2),
    }


async def _committed(
    rig: Rig, ids: Sequence[str], journals: int, chunks: int, seconds: float, numbers: Iterator[int]
) -> list[float]:
    """How long each transaction took."""
    said, waits, until = SampleEvents(), list[float](), time.perf_counter() + seconds

    async def write(mine: Sequence[str]) -> None:
        while not waits or time.perf_counter() < until:
            begun = time.perf_counter()
            entries = said.entries(WORKER, mine, next(numbers))
            appended = await logs.append(rig.db, entries)
            waits.append(time.perf_counter() - begun)
            if len(appended) != chunks:
                raise ValueError("a chunk was refused")

    await asyncio.gather(*(write(ids[number * chunks : (number + 1) * chunks]) for number in range(journals)))
    return waits
