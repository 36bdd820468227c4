"""Measures every price of `Costs` in `rig.started_rig`, each often enough for the clocks to show it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import text

from app.maintenance.loop import LOST_SECONDS, ROUND_SECONDS, Maintenance
from app.protocol.events.chunk import Chunk
from app.queue.publisher import TaskQueue
from app.store import retention
from app.store.keys import pubsub_key
from app.store.queue import workers
from app.store.queue.workers import WorkerIdentity
from app.store.responses import logs
from app.streaming.pubsub import CHANNEL, PubSub
from tests.bench.fleet.costs import Line
from tests.bench.fleet.meter import Own, Used
from tests.bench.fleet.rig import Rig
from tests.bench.fleet.rows import OPENED, SampleEvents, make_finished, make_queued, make_running, vacuum
from tests.bench.load import Load, Mode
from tests.bench.measurement import Measured, measure_load
from tests.bench.processes import Role
from tests.bench.prompts import SCRIPT
from tests.bench.rounds import TooManyErrors
from tests.support.rows import SLOTS, claim
from tests.support.waiting import until

CLIENTS = 8
ENDING = 4
"""Responses that end in one commit."""
LOOKED = (10, 100, 1000)
"""Workers, for maintenance's looks."""
BATCH_SIZES = (4, 64)
"""Messages of one commit."""
SUBSCRIBERS = 16
READERS = (1, 4)
STREAMS = 32
IDLE_SECONDS = 5.0
PATIENCE = 600.0

Found = dict[str, Any]


async def measured(rig: Rig) -> Found:
    """All prices but those of the journal (journals.py), by the names that they have in `Costs`."""
    found: Found = {}
    # Maintenance's looks come first: they would take what others leave behind.
    for part in (_looks, _alive, _requests, _polls, _claims, _merges, _pubsub):
        found |= await part(rig)
    found |= await _readers(rig, found["get"])
    found |= await _broker(rig)
    found["request_wal"] = sum(found.pop(name) for name in ("create_wal", "claim_wal", "finish_wal"))
    return found


# -- requests ----------------------------------------------------------------------------------------------------


async def _requests(rig: Rig) -> Found:
    """POSTs, while no worker runs."""
    count = rig.times(300)
    await _asked(rig, _posts(CLIENTS))
    async with rig.meter.measure() as used:
        await _asked(rig, _posts(count))
    return {
        "post": used.of(Role.API) / count,
        "create": used.of(Role.POSTGRES) / count,
        "create_wal": used.wal / count,
        "send": used.of(Role.REDIS) / count,
    }


def _posts(count: int) -> Load:
    body = {"max_output_tokens": 1, "ignore_eos": True}
    return Load("", Mode.ENQUEUE, CLIENTS, count, body, SCRIPT, warmup=0, busy=0, keep=True)


async def _polls(rig: Rig) -> Found:
    count = rig.times(400)
    ids = await make_queued(rig.db, 1, "resp_poll")
    paths = [f"/v1/responses/{each}" for each in ids]
    async with rig.meter.measure() as used:
        await _asked(rig, Load("", Mode.GET, CLIENTS, count, paths=paths))
    return {"get": used.of(Role.API) / count, "poll": used.of(Role.POSTGRES) / count}


async def _asked(rig: Rig, load: Load) -> Measured:
    measured = await measure_load(rig.longhaul, load)
    if measured.figures.errors:
        raise TooManyErrors(f"{measured.figures.errors} errors: {measured.figures.complaints[0]}")
    return measured


async def _claims(rig: Rig) -> Found:
    """Claims one by one; chunks that end their response in batches, compared with as many that do not."""
    count, said = rig.times(256), SampleEvents()
    ids = await make_queued(rig.db, count, "resp_claim")
    async with rig.meter.measure() as claims:
        for response_id in ids:
            await claim(rig.db, response_id, "paper")

    async def append(number: int, final: bool) -> Used:
        async with rig.meter.measure() as used:
            for first in range(0, count, ENDING):
                batch = [said.entry("paper", each, number, final=final) for each in ids[first : first + ENDING]]
                await logs.append(rig.db, batch)
        return used

    await append(OPENED, False)  # every statement is known then
    plain, endings = await append(OPENED + 1, False), await append(OPENED + 2, True)
    return {
        "claim": claims.of(Role.POSTGRES) / count,
        "claim_wal": claims.wal / count,
        "finish": max(0.0, endings.of(Role.POSTGRES) - plain.of(Role.POSTGRES)) / count,
        "finish_wal": max(0.0, endings.wal - plain.wal) / count,
    }


# -- workers that live -------------------------------------------------------------------------------------------


async def _alive(rig: Rig) -> Found:
    """A heartbeat of a worker with 64 responses, and the check of its presence."""
    worker = "alive"
    await workers.register(rig.db, WorkerIdentity(worker, "bench", "model.bench", "host", 1, 4096, 32, worker), 3600.0)
    running = dict.fromkeys(await make_running(rig.db, 64, "resp_alive", worker), 1)
    count = rig.times(400)
    beats = await _repeated(rig, count, lambda: workers.heartbeat(rig.db, worker, 3600.0, running, SLOTS))
    async with workers.presence(rig.db, worker) as check:
        checks = await _repeated(rig, count, check)
    await workers.unregister(rig.db, worker)
    return {"heartbeat": beats.of(Role.POSTGRES) / count, "presence": checks.of(Role.POSTGRES) / count}


async def _looks(rig: Rig) -> Found:
    """A second of maintenance, by the number of workers; all of them are present, nothing is to be done."""
    settings = rig.settings
    pubsub, queue = PubSub(settings.broker_url, pubsub_key(rig.db)), TaskQueue(settings)
    maintenance = Maintenance(settings, rig.db, pubsub, queue)
    often, seldom = 1 / ROUND_SECONDS, 1 / LOST_SECONDS
    points: list[tuple[float, float]] = []
    try:
        for count in LOOKED:
            async with AsyncExitStack() as stack:
                await _present(rig, stack, count)
                again = rig.times(20)
                looks = (
                    maintenance.release_dead_workers,
                    maintenance.send_released,
                    maintenance.dispatch,
                    maintenance.expire,
                )
                used = [await _repeated(rig, again, look) for look in (*looks, maintenance.redeliver)]
            *each, lost = [one.of(Role.POSTGRES) / again for one in used]
            points.append((count, sum(each) * often + lost * seldom))
        await _register(rig, ())
    finally:
        await queue.close()
        await pubsub.close()
    return {"looks": Line.through(points)}


async def _present(rig: Rig, stack: AsyncExitStack, count: int) -> None:
    """So many workers, all of whose locks one connection holds."""
    connection = await stack.enter_async_context(rig.db.begin())
    ids = [f"look-{number}" for number in range(count)]
    lock = "SELECT pg_advisory_xact_lock(hashtextextended(id, 0)) FROM unnest(CAST(:ids AS text[])) id"
    await connection.execute(text(lock), {"ids": ids})
    await _register(rig, ids)


async def _register(rig: Rig, ids: Sequence[str]) -> None:
    """These are the workers now, and no others."""
    async with rig.db.begin() as other:
        await other.execute(text("DELETE FROM workers"))
        register = """
            INSERT INTO workers
                (id, model, queue, node, host, pid, started_at, lease_until, layout, context_length, slots, format)
            SELECT id, 'bench', 'model.bench', id, 'host', 1, now(), now() + interval '1 hour', 1, 4096, 32, 'chat'
            FROM unnest(CAST(:ids AS text[])) id
        """
        await other.execute(text(register), {"ids": list(ids)})
    async with rig.db.autocommit() as other:
        await other.execute(text("VACUUM ANALYZE workers"))


async def _repeated(rig: Rig, count: int, work: Callable[[], Awaitable[object]]) -> Used:
    await work()
    async with rig.meter.measure() as used:
        for _ in range(count):
            await work()
    return used


# -- what maintenance merges -------------------------------------------------------------------------------------


async def _merges(rig: Rig) -> Found:
    costs: dict[str, list[tuple[float, float]]] = {"merge": [], "merge_wal": [], "tidy": []}
    for chunks, count in ((8, rig.times(200)), (128, rig.times(100))):
        await make_finished(rig.db, count, f"resp_merge{chunks}_", chunks)
        due = datetime.now(UTC) + timedelta(hours=1)
        async with rig.meter.measure() as used:
            merged = 0
            while found := await retention.merge_finished(rig.db, due, 50):
                merged += found
            await vacuum(rig.db)
        for name, value in (("merge", used.of(Role.POSTGRES)), ("merge_wal", used.wal), ("tidy", used.of(Own.SELF))):
            costs[name].append((chunks, value / merged))
    return {name: Line.through(points) for name, points in costs.items()}


# -- pub/sub -----------------------------------------------------------------------------------------------------


async def _pubsub(rig: Rig) -> Found:
    """Publishing without subscribers, then with as many as there may be API processes."""
    names = [f"resp_{number}" for number in range(max(BATCH_SIZES))]
    published = [(count, await _publish_seconds(rig, names[:count])) for count in BATCH_SIZES]
    async with AsyncExitStack() as stack:
        for first in range(SUBSCRIBERS):
            await _subscribe(rig, stack, names[first::SUBSCRIBERS])
        delivered = await _publish_seconds(rig, names)
    publish = Line.through(published)
    return {"publish": publish, "deliver": max(0.0, delivered - publish.at(len(names))) / len(names)}


async def _publish_seconds(rig: Rig, names: Sequence[str]) -> float:
    """Seconds of Redis for a message to each of these, in one go."""
    frame, times = SampleEvents().frame, rig.times(12_800 // len(names))
    publisher = PubSub(rig.settings.broker_url, pubsub_key(rig.db))
    try:
        async with rig.meter.measure() as used:
            for number in range(times):
                await publisher.publish([Chunk(name, number, number, 1, (), frame) for name in names])
    finally:
        await publisher.close()
    return used.of(Role.REDIS) / times


async def _subscribe(rig: Rig, stack: AsyncExitStack, names: Sequence[str]) -> None:
    """One connection that subscribes to all of these and discards what it receives."""
    redis = rig.longhaul.redis
    stack.push_async_callback(redis.aclose)
    pubsub = redis.pubsub()
    await pubsub.subscribe(*(CHANNEL + name for name in names))

    async def drain() -> None:
        while True:
            await pubsub.get_message(timeout=None)

    task = asyncio.create_task(drain())

    async def stop() -> None:
        task.cancel()
        await asyncio.wait([task])
        await pubsub.aclose()  # type: ignore[no-untyped-call]

    stack.push_async_callback(stop)


async def _readers(rig: Rig, opening: float) -> Found:
    """One worker's streams through the real API: what a chunk costs there, and what each reader of it.

    `opening`: CPU seconds that the API needs for the request of each, which is no part of that.
    """
    tokens, rate = rig.times(60), 15.0
    points: list[tuple[float, float]] = []
    for readers in READERS:
        ids = await make_running(rig.db, STREAMS, f"resp_readers{readers}_", "paper")
        paths = [f"/v1/responses/{each}?stream=true" for each in ids]
        count = STREAMS * readers
        async with rig.meter.measure() as used:
            reading = asyncio.create_task(_asked(rig, Load("", Mode.READ, count, count, paths=paths)))
            await asyncio.wait([reading], timeout=2.0)  # time for the client to start; a late reader costs as much
            await asyncio.gather(reading, _write(rig, ids, rate, tokens))
        points.append((readers, max(0.0, used.of(Role.API) - opening * count) / (STREAMS * tokens)))
    # In a very short run the price of the requests may be off by more than all that was read cost.
    line = Line.through(points) if all(value > 0 for _, value in points) else Line(0.0, 0.0)
    return {"receive": line.fixed, "write": line.each}


async def _write(rig: Rig, ids: Sequence[str], rate: float, tokens: int) -> None:
    """What a worker commits and publishes: `tokens` events of each of these, `rate` a second; the last one ends it."""
    said, publisher = SampleEvents(), PubSub(rig.settings.broker_url, pubsub_key(rig.db))
    try:
        for number in range(OPENED, OPENED + tokens):
            final = number == OPENED + tokens - 1
            entries = [said.entry("paper", each, number, final=final) for each in ids]
            await logs.append(rig.db, entries)
            await publisher.publish([entry.chunk for entry in entries])
            await asyncio.sleep(1 / rate)
    finally:
        await publisher.close()


# -- the broker --------------------------------------------------------------------------------------------------


async def _broker(rig: Rig) -> Found:
    """A real worker takes all that was posted above, and then has nothing to do."""
    waiting = "SELECT count(*) FROM responses WHERE status = 'queued' AND queue = 'model.bench'"
    count, seconds = int(await _scalar(rig, waiting)), IDLE_SECONDS * rig.size
    alone = await _quiet(rig, seconds)
    begun = time.perf_counter()
    async with rig.meter.measure() as used:
        await rig.longhaul.begin(Role.WORKER)
        await until(partial(_none, rig, waiting), PATIENCE, "the queue is empty")
        spent = time.perf_counter() - begun
    await asyncio.sleep(1.0)
    idle = await _quiet(rig, seconds)
    await rig.longhaul.end(Role.WORKER)
    return {
        "consume": max(0.0, used.of(Role.REDIS) - spent * idle) / count,
        "idle": max(0.0, idle - alone),
        "tick": alone,
    }


async def _quiet(rig: Rig, seconds: float) -> float:
    """CPU seconds that Redis takes in a second in which no client sends anything."""
    async with rig.meter.measure() as used:
        await asyncio.sleep(seconds)
    return used.of(Role.REDIS) / seconds


async def _none(rig: Rig, statement: str) -> bool:
    return not await _scalar(rig, statement)


async def _scalar(rig: Rig, statement: str) -> Any:
    async with rig.db.autocommit() as connection:
        return (await connection.execute(text(statement))).scalar_one()
