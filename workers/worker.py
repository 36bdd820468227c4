"""One worker: its engine, its lease, its journal and its runner, put together and taken apart in order."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from app.queue.celery_app import QueueUnavailable, TaskQueue
from app.store.database import Database
from app.store.migrate import wait_for_schema
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from config.collector import settle
from config.models import load_catalog
from config.settings import Settings
from workers.engine import make_engine
from workers.engine.base import Engine, EngineDead
from workers.generation.coalescing import Granularity
from workers.generation.journal import Journal
from workers.generation.lease import Lease
from workers.generation.runner import Runner
from workers.mcp.sessions import McpSessions

log = logging.getLogger("longhaul.worker")

ENGINE_DIED = 1
"""Exit code of a worker whose engine is gone; whoever runs it starts it again."""
CHECK_SECONDS = 1.0
SWITCH_SECONDS = 0.001
"""How long Celery's thread waits for the interpreter while the pool's loop is busy. It does so several times for each
message: with Python's 5 ms, the last of many requests that come at once begins late."""


@asynccontextmanager
async def worker_lifespan(settings: Settings, stop_worker: Callable[[int], None]) -> AsyncIterator[Runner]:
    """Up: schema, engine, journal, lease; then the worker may claim. Down: the other way round.

    The lease goes before the journal: what was given back is others' from then on.
    Raises ConfigError or EngineDead where the engine cannot start.
    """
    catalog = load_catalog(settings)
    model = catalog.chosen(settings.model)
    workshop = McpSessions(catalog.tools, settings.tool_result_bytes)
    db = Database(settings.database_dsn, settings.database_pool)
    pubsub = PubSub(settings.broker_url)
    queue = TaskQueue(settings)
    journal = Journal(db, pubsub)
    engine = await asyncio.to_thread(make_engine, model)

    async def again(row: ResponseRow) -> None:
        try:
            await queue.enqueue(row.id, row.model, row.queue, row.priority)
        except QueueUnavailable:
            log.info("%s released; maintenance will send it", row.id)

    runner = Runner(
        db,
        journal,
        engine,
        model,
        settings.max_crashes,
        again,
        lambda: stop_worker(ENGINE_DIED),
        workshop,
        Granularity(settings.event_interval_seconds, settings.events_per_second, settings.event_per_token),
    )
    lease = runner.lease = Lease(db, model, settings.lease_seconds, runner.running, runner.lost)
    try:
        await wait_for_schema(db)
        log.info("loading %s", model.name)
        await asyncio.to_thread(workshop.open)
        await engine.start()
        await journal.start()
        await lease.start()
        settle()
        sys.setswitchinterval(SWITCH_SECONDS)
        log.info("%s is ready", model.name)
        watch = asyncio.create_task(_watch(engine, stop_worker), name="engine-watch")
        try:
            yield runner
        finally:
            watch.cancel()
            await lease.close()
            await journal.close()
    finally:
        await engine.stop()
        await queue.close()
        await pubsub.close()
        await db.close()


async def _watch(engine: Engine, stop_worker: Callable[[int], None]) -> None:
    """Ends the worker when its engine dies while nothing runs on it; a running response finds out by itself."""
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            await engine.check()
        except EngineDead as error:
            log.critical("the engine died: %s", error)
            stop_worker(ENGINE_DIED)
            return
