"""Whether the queue is fair, and what that costs: real Postgres and Valkey, worked off by slots without an engine.

Fairness is counted in claims and tokens, not in seconds. `alone` compares one project's throughput with that of the
same slots when every message is in Redis from the start.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio
from sqlalchemy import text

from app.queue.message import Message, Priority
from app.store import dispatch
from app.store.database import Database
from app.store.dispatch import MAX_SENT
from app.store.migrate import migrate
from tests.bench.results import Results
from tests.support.services import Services
from tests.support.slot_worker import SlotWorker, slot_worker
from tests.support.waiting import until
from tests.support.waiting_rows import QUEUE, sent, waiting, weigh, with_slots

NAME = "fair"
TENANTS = (1, 10, 100)
QUEUED = 50_000
SIZES = (1_000, 10_000, 100_000, 1_000_000)
FLOWS = 1_000
SLOTS = 16
WINDOW = 32
TURN_SECONDS = 0.1
PATIENCE = 600.0
MIB = 1 << 20
_EMPTY = "TRUNCATE responses, conversations, workers, flows, queues CASCADE"

Row = dict[str, Any]
Say = Callable[[str], None]


class Bench:
    """The services, emptied for each question. `size` shrinks every number, for tests."""

    def __init__(self, services: Services, db: Database, results: Results, say: Say, size: float) -> None:
        self.services = services
        self.db = db
        self._results = results
        self._say = say
        self._size = size

    def count(self, number: int) -> int:
        return max(64, round(number * self._size))

    def add(self, what: str, of: str, found: str, wanted: str) -> None:
        row = {"what": what, "of": of, "found": found, "wanted": wanted}
        self._results.rows.append(row)
        self._say(", ".join(row.values()))

    @asynccontextmanager
    async def worker(self, slots: int = SLOTS, window: int = WINDOW) -> AsyncIterator[SlotWorker]:
        async with slot_worker(self.db, self.services.redis_url, slots, window) as worker:
            yield worker

    async def empty(self) -> None:
        async with self.db.begin() as connection:
            await connection.execute(text(_EMPTY))
        async with redis.asyncio.from_url(self.services.redis_url) as client:
            await client.flushall()

    async def begin(self, worker: SlotWorker) -> None:
        """The first dispatch, which maintenance would do."""
        worker.dispatcher.nudge(QUEUE)

    async def claims(self, worker: SlotWorker, count: int) -> None:
        await until(lambda: len(worker.claimed) >= count, timeout=PATIENCE, what=f"{count} claims")


async def measure(say: Say, size: float = 1.0) -> Results:
    """Raises AssertionError if something does not come within minutes."""
    results = Results.begin(NAME, size=size)
    services = Services()
    try:
        db = Database(services.database_url, 10)
        try:
            await migrate(db)
            bench = Bench(services, db, results, say, size)
            for question in (_passing, _weights, _classes, _alone, _sizes):
                await bench.empty()
                await question(bench)
                results.save()
        finally:
            await db.close()
    finally:
        services.close()
    return results


async def _passing(bench: Bench) -> None:
    """A project's single request behind what others have queued."""
    for tenants in TENANTS:
        await bench.empty()
        queued = bench.count(QUEUED)
        for number in range(tenants):
            await waiting(bench.db, f"a{number}", queued // tenants)
        async with bench.worker() as worker:
            await bench.begin(worker)
            await bench.claims(worker, 4 * SLOTS)
            worker.turn.clear()
            await until(worker.is_full, what="slots and window are full")
            begun = len(worker.claimed)
            (single,) = await waiting(bench.db, "b")
            worker.turn.set()
            await until(lambda single=single: single in {row.id for row in worker.claimed}, timeout=PATIENCE)
            passed = [row.id for row in worker.claimed[begun:]].index(single)
        of = f"{queued} queued by {tenants} others, {SLOTS} slots"
        bench.add("claims before a single request", of, str(passed), f"at most {SLOTS}: one turn of the slots")


async def _weights(bench: Bench) -> None:
    await weigh(bench.db, "a", 3.0)
    tokens = {"a": 400, "b": 50}
    for project in tokens:
        await waiting(bench.db, project, bench.count(4_000))
    taken = await _shares(bench, bench.count(3_000), tokens)
    ratio = taken["a"] * tokens["a"] / (taken["b"] * tokens["b"])
    of = f"{sum(taken.values())} responses, estimates wrong by 4 and by 1/2"
    bench.add("tokens of weight 3 to tokens of weight 1", of, f"{ratio:.2f}", "2.7 to 3.3")


async def _shares(bench: Bench, count: int, tokens: Mapping[str, int]) -> Counter[str]:
    async with bench.worker() as worker:
        worker.tokens = dict(tokens)
        await bench.begin(worker)
        await bench.claims(worker, count)
        return Counter(row.project for row in worker.claimed[:count])


async def _classes(bench: Bench) -> None:
    for priority in (Priority.FOREGROUND, Priority.BACKGROUND, Priority.FLEX):
        await waiting(bench.db, "a", bench.count(4_000), priority=priority)
    count = bench.count(3_000)
    async with bench.worker() as worker:
        await bench.begin(worker)
        await bench.claims(worker, count)
        flex = sum(row.priority == Priority.FLEX for row in worker.claimed[:count])
    bench.add(
        "share of flex", "beside a full default, foreground and background", f"{flex / count:.1%}", "at least 2 %"
    )


async def _alone(bench: Bench) -> None:
    """Both ways alternately, so that a machine that slows down slows both."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for fair in (True, False) * 3:
        await bench.empty()
        rates[fair].append(await _rate(bench, bench.count(1_500), fair=fair))
    best = {fair: max(found) for fair, found in rates.items()}
    of = f"{SLOTS} slots, turns of {TURN_SECONDS} s: {best[True]:.1f}/s against {best[False]:.1f}/s"
    bench.add(
        "throughput of one project alone, of that with all messages in Redis",
        of,
        f"{best[True] / best[False]:.1%}",
        "at least 98 %",
    )


async def _rate(bench: Bench, count: int, *, fair: bool) -> float:
    ids = await waiting(bench.db, "a", count)
    async with bench.worker() as worker:
        worker.seconds = TURN_SECONDS
        begun = time.monotonic()
        if fair:
            await bench.begin(worker)
        else:
            await _send_all(bench.db, worker, ids)
        await bench.claims(worker, count)
        return count / (time.monotonic() - begun)


async def _send_all(db: Database, worker: SlotWorker, ids: list[str]) -> None:
    async with db.begin() as connection:
        await connection.execute(text("UPDATE responses SET sent_at = now(), sends = 1"))
    await worker.queue.enqueue_all([Message(each, "scripted", QUEUE, Priority.BACKGROUND) for each in ids])


async def _sizes(bench: Bench) -> None:
    """What waits, in Redis and in Postgres, and how long a dispatch takes then."""
    for size in SIZES:
        await bench.empty()
        queued = bench.count(size)
        flows = min(FLOWS, queued // 10)
        await _fill(bench.db, queued, flows)
        await with_slots(bench.db, SLOTS * 16)
        async with redis.asyncio.from_url(bench.services.redis_url) as client, bench.worker(window=WINDOW) as worker:
            worker.turn.clear()
            await bench.begin(worker)
            await until(worker.is_full, timeout=PATIENCE, what="the window is full")
            memory = int((await client.info("memory"))["used_memory"]) / MIB
        table, index = await _table_sizes(bench.db)
        seconds, scans = await _dispatch_seconds(bench.db)
        of = f"{queued} queued, {flows} flows"
        bench.add("Redis, used_memory", of, f"{memory:.2f} MiB", "the same for all")
        bench.add("Postgres, table and indexes", of, f"{table:.0f} MiB, {index:.1f} of them for the order", "")
        bench.add(f"a dispatch of {MAX_SENT}", of, f"{1000 * seconds:.1f} ms, whole tables read: {scans or 'none'}", "")


async def _fill(db: Database, queued: int, flows: int) -> None:
    (first,) = await waiting(db, "p0")
    columns = "model, queue, status, background, stream, store, request, cost, format, priority"
    copy = f"""
        INSERT INTO responses (id, project, created_at, {columns})
        SELECT 'resp_' || md5(n::text) || n, 'p' || n % {flows}, now() + make_interval(secs => n / 1000.0), {columns}
        FROM generate_series(1, {queued - 1}) n, responses r WHERE r.id = '{first}'
    """
    async with db.begin() as connection:
        await connection.execute(text(copy))
    async with db.autocommit() as connection:
        await connection.execute(text("VACUUM ANALYZE responses"))


async def _table_sizes(db: Database) -> tuple[float, float]:
    sizes = "SELECT pg_total_relation_size('responses') AS whole, pg_relation_size('responses_waiting_idx') AS of_order"
    async with db.autocommit() as connection:
        row = (await connection.execute(text(sizes))).one()
    return row.whole / MIB, row.of_order / MIB


async def _dispatch_seconds(db: Database) -> tuple[float, list[str]]:
    """The seconds of a dispatch, and its steps that read the whole table."""
    begun, count = time.monotonic(), 0
    for number in range(10):
        await with_slots(db, 64, f"more {number}")
        count += len(await sent(db, WINDOW * 16)) // MAX_SENT
    seconds = (time.monotonic() - begun) / max(count, 1)
    values = {"queue": QUEUE, "virtual_time": 0.0, "room": MAX_SENT, "priorities": [6], "weights": [2.0]}
    async with db.begin() as connection:
        await connection.execute(dispatch._LOCK, {"queue": QUEUE})
        room = (
            await connection.execute(text(f"EXPLAIN {dispatch._ROOM.text}"), {"queue": QUEUE, "window": 32})
        ).scalars()
        plan = (await connection.execute(text(f"EXPLAIN {dispatch._DISPATCH.text}"), values)).scalars()
        return seconds, [line.strip() for line in (*room, *plan) if "Seq Scan on responses" in line]
