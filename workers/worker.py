"""One worker: its engine, lease, journal and runner, started in order and stopped in the reverse order."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from app.aio import end_tasks
from app.queue.message import Message
from app.queue.publisher import QueueUnavailable, TaskQueue
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.migrate import wait_for_schema
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from config.collector import freeze_gc
from config.models import load_catalog, require_folders
from config.settings import Settings
from workers.dispatcher import Dispatcher
from workers.engine import make_engine
from workers.engine.base import Engine, EngineDead
from workers.generation.journal import Journal
from workers.generation.lease import Lease
from workers.generation.look_ahead import LookAhead
from workers.generation.runner import Runner, WorkerParts
from workers.generation.runs import ActiveRuns
from workers.mcp.sessions import McpSessions

log = logging.getLogger("longhaul.worker")

PART_DIED = 1
"""Exit code of a worker whose engine or background work died; the supervisor starts another."""
CHECK_SECONDS = 1.0
SIDE_CONCURRENCY = 4
"""The most counts (`input_tokens`) and compactions that one worker runs at once."""
SWITCH_SECONDS = 0.001
"""How long Celery's thread waits for the interpreter while the pool's loop is busy. It waits several times for each
message: with Python's default of 5 ms, the last of many simultaneous requests begins late
(docs/decisions/first-token.md)."""


@asynccontextmanager
async def worker_lifespan(settings: Settings, stop_worker: Callable[[int], None]) -> AsyncIterator[Runner]:
    """Starts a worker, and stops it at the end of the block. Raises ConfigError or EngineDead.

    `stop_worker` ends this process with an exit code.
    """
    catalog = load_catalog(settings)
    model = catalog.choose(settings.model)
    require_folders(model)
    async with AsyncExitStack() as stack:
        db = Database(settings.database_dsn, settings.database_pool)
        stack.push_async_callback(db.close)
        pubsub = PubSub(settings.broker_url, pubsub_key(db))
        stack.push_async_callback(pubsub.close)
        queue = TaskQueue(settings)
        stack.push_async_callback(queue.close)
        engine = await asyncio.to_thread(make_engine, model)
        stack.push_async_callback(engine.stop)

        await wait_for_schema(db)
        log.info("loading %s", model.name)
        mcp_sessions = McpSessions(catalog.tools, settings.tool_result_bytes)
        await asyncio.to_thread(mcp_sessions.open)
        await engine.start()

        # The lease ends before the journal: a released response belongs to other workers, so late chunks are fenced.
        journal = Journal(db, pubsub)
        stack.push_async_callback(journal.close)
        runs = ActiveRuns()
        stop = partial(stop_worker, PART_DIED)
        slots = min(settings.worker_concurrency, engine.slots)
        lease = Lease(db, model, settings.lease_seconds, runs, engine.context_length, slots, stop)
        stack.push_async_callback(lease.close)
        await lease.start()

        dispatcher = Dispatcher(db, queue, settings.queue_window)
        stack.push_async_callback(dispatcher.close)

        freeze_gc()
        sys.setswitchinterval(SWITCH_SECONDS)
        watch = asyncio.create_task(_watch(engine), name="engine-watch")
        stack.push_async_callback(end_tasks, watch)
        watch.add_done_callback(lambda task: None if task.cancelled() else stop_worker(PART_DIED))
        log.info("%s is ready", model.name)
        yield Runner(
            WorkerParts(
                db=db,
                engine=engine,
                model=model,
                journal=journal,
                lease=lease,
                runs=runs,
                look_ahead=LookAhead(engine.slots),
                mcp_sessions=mcp_sessions,
                events_per_second=settings.events_per_second,
                side_concurrency=SIDE_CONCURRENCY,
                max_crashes=settings.max_crashes,
                most_context_bytes=2 * settings.max_context_bytes,  # requests were accepted under another bound, maybe
                held_context_bytes=settings.worker_context_bytes,
                send_released=_send_released(queue),
                claimed=partial(dispatcher.nudge, model.queue),
                ended=dispatcher.correct_flow,
                engine_died=stop,
            )
        )


def _send_released(queue: TaskQueue) -> Callable[[ResponseRow], Awaitable[None]]:
    async def send_released(row: ResponseRow) -> None:
        try:
            await queue.enqueue(
                Message(row.id, row.model, row.queue, row.priority, row.project, row.stream, row.attempt + 1)
            )
        except QueueUnavailable:
            log.info("%s released; maintenance will send its message", row.id)

    return send_released


async def _watch(engine: Engine) -> None:
    """Returns if the engine dies while idle; a running response notices by itself."""
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            await engine.check()
        except EngineDead as error:
            log.critical("the engine died: %s", error)
            return
        except Exception:
            log.exception("the engine cannot be checked")
            raise
