"""One worker: its engine, lease, journal and runner, started in order and stopped in the reverse order."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from app.aio import end_tasks
from app.dispatcher import Dispatcher
from app.metrics.instruments import WorkerMetrics
from app.metrics.server import serving
from app.protocol.text import type_and_places
from app.queue.publisher import TaskQueue
from app.scheduling.loads import Ahead
from app.store.database import Database, retry_until_available
from app.store.keys import pubsub_key
from app.store.migrate import wait_for_schema
from app.streaming.pubsub import PubSub
from config.logging.context import name_worker
from config.logging.handler import gathering_lines
from config.memory import freeze_gc
from config.models import VLLM, ServedModel, require_folders
from config.models_file import ModelsFile
from config.settings import Settings
from config.version import VERSION
from config.worker_readiness import PART_DIED, WorkerReadiness
from workers.engine import make_engine, resolved
from workers.engine.base import Engine, EngineDead, Sampling
from workers.generation.claimer import Claimer
from workers.generation.errors import ErrorHandler
from workers.generation.generator import Generator
from workers.generation.lease import Lease, identity_of
from workers.generation.run import ActiveRuns
from workers.generation.runner import Runner
from workers.generation.slots import Slots
from workers.generation.turns.counter import Counter
from workers.generation.turns.inputs import Inputs
from workers.generation.writing import flush_clock
from workers.generation.writing.flush_clock import FlushClock
from workers.generation.writing.journal import Journal
from workers.mcp.sessions import McpSessions
from workers.request_log import RequestLog

log = logging.getLogger("longhaul.worker")

CHECK_SECONDS = 0.25
"""Pause between two looks at an engine that is there."""
RETURN_SECONDS = 0.05
"""Pause between two looks at one that is away: what it ran waits for it."""
SEEDED = Sampling(extra={"seed": 0})
"""Stands for all requests whose sampler has a state."""
CANNOT_CONTINUE = {
    "continuation": "with a seed, penalties, min_tokens or a grammar, an answer fails if its worker or engine dies in "
    "the middle (docs/attach.md)"
}
SWITCH_SECONDS = 0.001
"""How long Celery's thread waits for the interpreter while the pool's loop is busy. It waits several times for each
message: with Python's default of 5 ms, the last of many simultaneous requests begins late
(docs/internals/performance.md)."""


@asynccontextmanager
async def worker_lifespan(
    settings: Settings, stop_worker: Callable[[int], None], readiness: WorkerReadiness, node: str
) -> AsyncIterator[Runner]:
    """Starts a worker, and stops it at the end of the block. Raises ConfigError or EngineDead.

    `stop_worker` ends this process with an exit code. `readiness` tells probes while the worker is there. `node` is its
    name.
    """
    file = ModelsFile(settings)
    chosen = _at_one_server(file.catalog.choose(settings.model), settings)
    name_worker(node)
    model = await _resolved(chosen)
    stop = partial(stop_worker, PART_DIED)
    async with AsyncExitStack() as stack:
        db = Database(settings.database_dsn, settings.database_pool)
        stack.push_async_callback(db.close)
        key = pubsub_key(db)
        pubsub = PubSub(settings.broker_url, key)
        stack.push_async_callback(pubsub.close)
        queue = TaskQueue(settings, key)
        stack.push_async_callback(queue.close)
        registry = CollectorRegistry()
        stack.enter_context(serving(settings, registry))
        metrics = WorkerMetrics(model.name, registry if settings.metrics_port is not None else None)
        mcp_sessions = McpSessions(file.catalog.tools, settings.tool_result_bytes)
        stack.push_async_callback(mcp_sessions.close)
        shown = with_statistics(model, settings)
        engine = await stack.enter_async_context(_loaded(shown, db, mcp_sessions, readiness))
        runner = await stack.enter_async_context(
            _claiming(settings, db, pubsub, queue, model, engine, mcp_sessions, stop, readiness, metrics, node)
        )
        freeze_gc()
        sys.setswitchinterval(SWITCH_SECONDS)
        watch = asyncio.create_task(_watch(engine, runner.slots, readiness), name="engine-watch")
        stack.push_async_callback(end_tasks, watch)
        watch.add_done_callback(lambda task: None if task.cancelled() else stop())
        following = asyncio.create_task(_follow(file, mcp_sessions), name="models-file")
        stack.push_async_callback(end_tasks, following)
        log.info("%s is ready as %s", model.name, runner.node)
        with gathering_lines():
            yield runner


def _at_one_server(model: ServedModel, settings: Settings) -> ServedModel:
    """The model with this worker's server, if its engines are servers. Raises ConfigError."""
    if model.upstream is None:
        return model
    return replace(model, upstream=model.upstream.only(settings.upstream, settings.upstream_key))


async def _resolved(model: ServedModel) -> ServedModel:
    """The model, with what its files say of its family and its tokenizer allows. Raises ConfigError."""
    require_folders(model)
    chosen, line = await asyncio.to_thread(resolved, model)
    log.info("%s: %s", model.name, line)
    return chosen


def registered_as(model: ServedModel, engine: Engine) -> ServedModel:
    """The model as its loaded engine knows it."""
    unfit = {} if engine.can_continue(SEEDED) else CANNOT_CONTINUE
    for line in (*engine.proof.lines(), *(f"refuses {what}: {why}" for what, why in unfit.items())):
        log.warning("%s %s", model.name, line)
    return replace(model, efforts=engine.efforts, refusals={**engine.proof.refused, **unfit})


@asynccontextmanager
async def _loaded(
    model: ServedModel, db: Database, mcp_sessions: McpSessions, readiness: WorkerReadiness
) -> AsyncIterator[Engine]:
    """The model's engine, started. Waits for Postgres first: an engine takes long to load."""
    engine = await asyncio.to_thread(make_engine, model)
    try:
        await wait_for_schema(db, readiness.wait)
        log.info("loading %s", model.name)
        await asyncio.to_thread(mcp_sessions.open)
        await engine.start()
        yield engine
    finally:
        await engine.stop()


@asynccontextmanager
async def _claiming(
    settings: Settings,
    db: Database,
    pubsub: PubSub,
    queue: TaskQueue,
    model: ServedModel,
    engine: Engine,
    mcp_sessions: McpSessions,
    stop: Callable[[], None],
    readiness: WorkerReadiness,
    metrics: WorkerMetrics,
    node: str,
) -> AsyncIterator[Runner]:
    """A runner that may claim: the worker is registered. `stop` is called if its lease or its engine is gone."""
    async with AsyncExitStack() as stack:
        # The lease ends before the journal: a released response belongs to other workers, so late chunks are fenced.
        journal = Journal(db, pubsub, metrics)
        stack.push_async_callback(journal.close)
        runs = ActiveRuns()
        slots = Slots(engine.slots, settings.worker_concurrency, cache_tokens=engine.cache_tokens)
        slots.offer(is_offering=False)  # until Celery takes messages
        dispatcher = Dispatcher(db, queue, lambda: Ahead(node, slots.ahead))
        lease = Lease(
            db,
            identity_of(registered_as(model, engine), engine, node, slots.offered),
            settings.lease_seconds,
            runs,
            slots,
            readiness,
            on_end=stop,
            on_more_slots=lambda: dispatcher.nudge_all(model.queue),
        )
        stack.push_async_callback(lease.close)
        await lease.start()
        slots.changed = lease.renew_now
        metrics.watch(_figures(slots, runs))
        metrics.name(node, VERSION)
        stack.push_async_callback(dispatcher.close)

        most_context = 2 * settings.max_context_bytes  # requests were accepted under another bound, maybe
        inputs = Inputs(db, most_context, settings.max_context_bytes)
        clock = FlushClock(flush_clock.bound(settings.events_per_second, on_cpu=engine.on_cpu))
        yield Runner(
            claimer=Claimer(db, runs, lambda: lease.worker, metrics),
            runs=runs,
            generator=Generator(db, engine, slots, model, inputs, mcp_sessions, journal, clock, metrics),
            errors=ErrorHandler(db, journal, settings.max_crashes, stop),
            dispatcher=dispatcher,
            slots=slots,
            node=node,
            command_key=await retry_until_available(pubsub_key(db)),
            counter=Counter(inputs, engine, model, mcp_sessions, queue, pubsub),
            metrics=metrics,
            requests=RequestLog(settings.log_requests),
        )


def with_statistics(model: ServedModel, settings: Settings) -> ServedModel:
    """The model with vLLM's own statistics, if somebody may read them and its `engine_args` do not say."""
    if settings.metrics_port is None or model.engine != VLLM:
        return model
    return replace(model, engine_args={"disable_log_stats": False, **model.engine_args})


def _figures(slots: Slots, runs: ActiveRuns) -> Mapping[str, Callable[[], float]]:
    """The figures that a scrape reads, from a thread of its own."""
    return {
        "slots": lambda: slots.count,
        "offered_slots": lambda: 0 if slots.is_drained else slots.offered,
        "running_responses": lambda: len(runs.attempts()),
        "generating_responses": lambda: slots.generating,
        "waiting_responses": lambda: len(slots.waiting),
        "away_responses": lambda: sum(slots.away),
    }


async def _follow(file: ModelsFile, mcp_sessions: McpSessions) -> None:
    """Lets new responses use the MCP servers that the models file has now. The model stays as it was at the start."""
    async for catalog in file.changes(log.error):
        if catalog.tools != mcp_sessions.servers:
            try:
                await asyncio.to_thread(McpSessions(catalog.tools, mcp_sessions.result_bytes).open)
            except Exception as error:  # an import of a library: the next change finds this task at work
                log.error("the MCP servers stay as they were: %s", type_and_places(error))
                continue
            mcp_sessions.servers = catalog.tools
            log.info("the MCP servers are now %s", ", ".join(server.label for server in catalog.tools) or "none")


async def _watch(engine: Engine, slots: Slots, readiness: WorkerReadiness) -> None:
    """Returns if the engine dies while idle; a running response notices by itself. While the engine is away, the worker
    is not ready."""
    has: int | None = None
    while True:
        await asyncio.sleep(RETURN_SECONDS if has == 0 else CHECK_SECONDS)
        try:
            await engine.check()
            if engine.slots != has:
                has = engine.slots
                readiness.pause("" if has else "its engine is away")
                slots.engine_has(has)
        except EngineDead as error:
            log.critical("the engine died: %s", error)
            return
        except Exception:
            log.exception("the engine cannot be checked")
            raise
