"""What a long queue weighs, in Redis, Flower and Postgres, and how long a dispatch takes then."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import redis.asyncio
from sqlalchemy import text

from app.scheduling.decisions import MAX_SENT
from app.store.database import Database
from app.store.layout import LAYOUT
from app.store.queue import dispatch, facts
from tests.bench.fair.rig import MIB, PATIENCE, Rig
from tests.bench.results import Results
from tests.support.celery_processes import Flower
from tests.support.services import open_folder
from tests.support.waiting import until
from tests.support.waiting_rows import QUEUE, end, waiting, with_slots

SIZES = (1_000, 10_000, 100_000, 1_000_000)
FLOWS = 100
MANY_FLOWS = (100, 1_000, 5_000)
MANY_QUEUED = 10_000
DISPATCHES = 20
COPIED = 50_000
"""Rows of one statement: it has a time limit."""
_SIZES = """
    SELECT pg_table_size('responses') AS rows, pg_indexes_size('responses') AS indexes,
        pg_relation_size('responses_waiting_idx') + pg_relation_size('responses_sent_idx') AS order
"""
_FILL = """
    INSERT INTO responses (id, project, created_at, {columns})
    SELECT 'resp_' || md5(n::text), 'p' || n % {flows}, now(), {columns}
    FROM generate_series(CAST(:begin AS int), CAST(:end AS int)) n, responses r WHERE r.id = :first ORDER BY n
"""
_COLUMNS = (
    "model, queue, status, background, stream, store, request, input_bytes, cost, chain_length, context_bytes, "
    "layout, priority"
)

Row = dict[str, Any]


async def sizes(rig: Rig, results: Results) -> None:
    """A row for each size; they are saved as they come."""
    with open_folder() as folder:
        async with _flower(rig, folder) as flower:
            for size in SIZES:
                await rig.empty()
                queued = rig.count(size)
                await _fill(rig.db, queued, min(FLOWS, queued // 10))
                row: Row = {"queued": queued, "flows": min(FLOWS, queued // 10)}
                async with rig.worker() as worker:
                    worker.turn.clear()
                    await until(lambda: worker.is_full, timeout=PATIENCE, what="the slots are full")
                    row["messages in Redis"] = await worker.in_redis()
                    row["Redis MiB"] = await _redis_mebibytes(rig.services.redis_url)
                    row["Flower MiB"] = _mebibytes(flower)
                row |= {**await _postgres(rig.db, queued), **await _dispatches(rig.db)}
                _add(rig, results, row)


async def many_flows(rig: Rig) -> None:
    """The price of a flow: a dispatch looks at each that waits."""
    for flows in MANY_FLOWS:
        await rig.empty()
        queued = max(rig.count(MANY_QUEUED), 2 * flows)
        await _fill(rig.db, queued, flows)
        row = await _dispatches(rig.db)
        milliseconds, scans = row["dispatch ms"], row["full scans"]
        of = f"{queued:,} queued in {flows:,} flows"
        met = scans == "none"
        rig.found(f"ms of a dispatch of {MAX_SENT}", of, f"{milliseconds:.1f}", "no table read as a whole", met=met)


def _add(rig: Rig, results: Results, row: Row) -> None:
    results.rows.append(row)
    results.save()
    rig.say(f"  {', '.join(f'{name}: {value}' for name, value in row.items())}")


async def _fill(db: Database, queued: int, flows: int) -> None:
    (first,) = await waiting(db, "p0")
    copy = text(_FILL.format(columns=_COLUMNS, flows=flows))
    for begin in range(1, queued, COPIED):
        async with db.begin() as connection:
            values = {"first": first, "begin": begin, "end": min(begin + COPIED, queued) - 1}
            await connection.execute(copy, values)
    async with db.autocommit() as connection:
        await connection.execute(text("ANALYZE responses"))


async def _postgres(db: Database, queued: int) -> Row:
    async with db.autocommit() as connection:
        found = (await connection.execute(text(_SIZES))).one()
    return {
        "rows MiB": round(found.rows / MIB, 1),
        "indexes MiB": round(found.indexes / MIB, 1),
        "of them for the order MiB": round(found.order / MIB, 2),
        "bytes a response": round((found.rows + found.indexes) / queued),
    }


async def _dispatches(db: Database) -> Row:
    """The median milliseconds of a dispatch of MAX_SENT, and the tables that it reads as a whole."""
    await with_slots(db, MAX_SENT, "dispatched")  # a worker that runs tells of its own slots again and again
    seconds: list[float] = []
    for _ in range(DISPATCHES):
        begun = time.monotonic()
        messages = await dispatch.dispatch(db, QUEUE)
        seconds.append(time.monotonic() - begun)
        if not messages:
            break  # all is sent
        await end(db, [message.response_id for message in messages])
    return {"dispatch ms": round(1000 * statistics.median(seconds), 1), "full scans": await _full_scans(db)}


async def _full_scans(db: Database) -> str:
    most = {"most": MAX_SENT, "foreground_most": MAX_SENT, "foreground": True}
    all_loads = {"if_some_wait": True, "if_nobody_waits": True}
    values = {"queue": QUEUE, "virtual_time": 0.0, "layout": LAYOUT, "queues": [QUEUE], **all_loads, **most}
    async with db.begin() as connection:
        await connection.execute(dispatch._LOCK, {"queue": QUEUE})  # and what it sets for the transaction
        plans: list[str] = []
        for statement in (facts._STATES, dispatch._FACTS):
            explained = text(f"EXPLAIN {statement.text}")
            used = {name: values[name] for name in explained.compile().params}
            plans += (await connection.execute(explained, used)).scalars()
    return ", ".join(line.strip() for line in plans if "Seq Scan on responses" in line) or "none"


@asynccontextmanager
async def _flower(rig: Rig, folder: Path) -> AsyncIterator[Flower]:
    """A Flower that listens to the workers' and the queue's events."""
    flower = Flower(rig.services.redis_url, folder, "admin:secret")
    try:
        await until(lambda: "Visit me" in flower.text, timeout=PATIENCE, what="Flower")
        yield flower
    finally:
        flower.kill()


def _mebibytes(flower: Flower) -> float:
    return round(psutil.Process(flower.process.pid).memory_info().rss / MIB, 1)


async def _redis_mebibytes(url: str) -> float:
    async with redis.asyncio.from_url(url) as client:
        return round(int((await client.info("memory"))["used_memory"]) / MIB, 2)
