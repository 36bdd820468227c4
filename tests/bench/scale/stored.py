"""Stored responses: whatever is done to one of them must take as long among a million as among a thousand.

Rows are copies of one real response, made by SQL. Every statement that the product makes is explained: a scan of a
whole table is an error from `LARGE` on, where Postgres has no excuse.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from statistics import median

from sqlalchemy import text

from app.protocol.events.chunk import Chunk
from app.queue.publisher import TaskQueue
from app.store import retention
from app.store.context import contents
from app.store.keys import pubsub_key
from app.store.responses import claims, endings, logs
from app.store.responses.logs import Entry
from app.streaming.pubsub import PubSub
from config.settings import load_settings
from tests.bench.contenders.longhaul import Longhaul
from tests.bench.load import Load, Mode, Time
from tests.bench.processes import Role
from tests.bench.prompts import SCRIPT
from tests.bench.results import Results
from tests.bench.scale.explained import Explainer
from tests.bench.scale.setup import MeasurementFailed, Row, Setup, body, curves, post, put, scalar
from tests.support.rows import claim
from workers.maintenance import Maintenance

SAYS = "10^3 to 10^6 stored responses: each thing that is done to one, and each of maintenance's looks"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
LARGE = 10_000
TOKENS = 32
WAITING = 50
"""Queued responses at each size."""
GETS = 200
TIMES = 5
LIMIT = 500
"""Rows that one look of retention takes."""
AGES = 72_000
"""Seconds over which the ends of the copies are spread: none is due by the default retention."""
WORKER = "bench"
SCANS = "full scans"

# Newer ids are greater, as the product makes them. The template's columns are copied, whatever they are.
_COPY = """
    INSERT INTO responses ({columns}, id, created_at, started_at, finished_at, log)
    SELECT {columns}, 'resp_' || lpad(to_hex(i), 12, '0') || substr(md5(i::text), 1, 28), ended, ended, ended, 'merged'
    FROM responses t, generate_series(CAST(:first AS int), CAST(:last AS int)) i,
        LATERAL (SELECT now() - make_interval(secs => i % CAST(:ages AS int)) AS ended) n
    WHERE t.id = :id
"""
_COPY_CHUNKS = """
    INSERT INTO chunks ({columns}, response_id)
    SELECT {columns}, 'resp_' || lpad(to_hex(i), 12, '0') || substr(md5(i::text), 1, 28)
    FROM chunks t, generate_series(CAST(:first AS int), CAST(:last AS int)) i WHERE t.response_id = :id
"""
_COLUMNS = """
    SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns
    WHERE table_name = :table AND NOT column_name = ANY(:own) AND is_generated = 'NEVER' AND is_identity = 'NO'
"""
_OWN = {"responses": ["id", "created_at", "started_at", "finished_at", "log"], "chunks": ["response_id"]}
_SOME = "SELECT array_agg(id) FROM (SELECT id FROM responses WHERE finished_at IS NOT NULL ORDER BY md5(id) LIMIT :n) s"
"""Any of them, the same ones each time."""

Work = Callable[[], Awaitable[object]]


async def rows(setup: Setup, sizes: Sequence[int]) -> AsyncIterator[Row]:
    async with setup.longhaul() as longhaul:
        template = await _template(longhaul)
        for role in (Role.WORKER, Role.MAINTENANCE):
            await longhaul.end(role)  # no other process looks for work
        made = 0
        for size in sizes:
            begun = time.perf_counter()
            await _copy(longhaul, template, made + 1, size)
            made = size
            row: Row = {"stored": size, "seconds to make": round(time.perf_counter() - begun, 1)}
            row |= await _over_http(longhaul)
            async with _probes(longhaul, template) as probes:
                row |= await _inside(longhaul, probes)
            yield row
            if row[SCANS] and size >= LARGE:
                raise MeasurementFailed(f"these scan a whole table: {row[SCANS]}")


# -- rows --------------------------------------------------------------------------------------------------------


async def _template(longhaul: Longhaul) -> str:
    """A real response that has ended, with its events merged."""
    made = await post(longhaul, **body(TOKENS))
    await retention.merge_finished(longhaul.db, datetime.now(UTC) + timedelta(seconds=1))
    return str(made["id"])


async def _copy(longhaul: Longhaul, template: str, first: int, last: int) -> None:
    numbers = {"first": first, "last": last, "id": template}
    async with longhaul.db.begin() as connection:
        await connection.execute(text("SET LOCAL synchronous_commit = off"))
        for statement, table, more in ((_COPY, "responses", {"ages": AGES}), (_COPY_CHUNKS, "chunks", {})):
            found = await connection.execute(text(_COLUMNS), {"table": table, "own": _OWN[table]})
            await connection.execute(text(statement.format(columns=found.scalar_one())), {**numbers, **more})
    async with longhaul.db.autocommit() as connection:
        await connection.execute(text("VACUUM ANALYZE responses, chunks"))


# -- from outside ------------------------------------------------------------------------------------------------


async def _over_http(longhaul: Longhaul) -> Row:
    ids = await scalar(longhaul, _SOME, n=GETS)
    enqueue = Load("", Mode.ENQUEUE, 1, WAITING, body(TOKENS), SCRIPT, warmup=0, busy=0, keep=True)
    queued = (await put(longhaul, enqueue)).figures
    asked = {
        "retrieve": [f"/v1/responses/{each}" for each in ids],
        "input_items": [f"/v1/responses/{each}/input_items" for each in ids],
        "poll": [f"/v1/responses/{each}" for each in queued.ids],
    }
    row: Row = {"POST ms": queued.times[Time.POST]["p50"]}
    for name, paths in asked.items():
        figures = (await put(longhaul, Load("", Mode.GET, 1, GETS, paths=paths))).figures
        row[f"{name} ms"] = figures.times[Time.GET]["p50"]
    return row


# -- inside ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _probes(longhaul: Longhaul, template: str) -> AsyncIterator[Mapping[str, Work]]:
    """What is timed and explained: name -> work."""
    urls = {"DATABASE_URL": longhaul.services.database_url, "REDIS_URL": longhaul.services.redis_url}
    settings = load_settings(**urls)
    logging.getLogger("longhaul.maintenance").setLevel(logging.ERROR)  # it wonders about the worker that is none
    pubsub, queue = PubSub(settings.broker_url, pubsub_key(longhaul.db)), TaskQueue(settings)
    maintenance = Maintenance(settings, longhaul.db, pubsub, queue)
    db, now = longhaul.db, datetime.now(UTC)
    waiting = list(await scalar(longhaul, "SELECT array_agg(id) FROM responses WHERE status = 'queued'") or ())
    due = now - timedelta(seconds=AGES - 600)
    try:
        yield {
            "claim": lambda: _claim_one(longhaul, waiting),
            "append": lambda: _append_one(longhaul, waiting),
            "give back": lambda: _released(longhaul, waiting),
            "cancel": lambda: endings.cancel(db, waiting[-1], None),
            "read events": lambda: logs.read(db, template),
            "context": lambda: contents.chain_items(db, "default", template),
            "rescue": maintenance.release_dead_workers,
            "resend": maintenance.send_released,
            "find lost": maintenance.redeliver,
            "expire": maintenance.expire,
            "sweep": maintenance.sweep,
            "merge": lambda: retention.merge_finished(db, now, LIMIT),
            "delete events": lambda: retention.delete_events(db, due, 1),
            "delete responses": lambda: retention.delete_expired(db, due, due, 1),
        }
    finally:
        await queue.close()
        await pubsub.close()


async def _inside(longhaul: Longhaul, probes: Mapping[str, Work]) -> Row:
    """Milliseconds of each; what scans a whole table is named."""
    row, scans = Row(), dict[str, list[str]]()
    for name, work in probes.items():
        spent = []
        async with Explainer(longhaul.db) as explainer:
            for _ in range(TIMES):
                begun = time.perf_counter()
                await work()
                spent.append(time.perf_counter() - begun)
        row[f"{name} ms"] = round(1000 * median(spent), 2)
        if found := await explainer.scans():
            scans[name] = found
    return row | {SCANS: "; ".join(f"{name}: {', '.join(tables)}" for name, tables in scans.items())}


async def _claim_one(longhaul: Longhaul, waiting: Sequence[str]) -> None:
    for response_id in waiting:
        if await claim(longhaul.db, response_id, WORKER):
            return
    raise MeasurementFailed("there is nothing left to claim")


async def _append_one(longhaul: Longhaul, waiting: Sequence[str]) -> None:
    """A chunk of the first one, behind what it has."""
    found = await logs.read(longhaul.db, waiting[0])
    attempt = await scalar(longhaul, "SELECT attempt FROM responses WHERE id = :id", id=waiting[0])
    first = found.chunks[-1].last + 1
    chunk = Chunk(waiting[0], first, first, attempt, (1,), b'event: response.output_text.delta\ndata: {"type":"x"}\n\n')
    if not await logs.append(longhaul.db, [Entry(WORKER, chunk)]):
        raise MeasurementFailed("the chunk was refused")


async def _released(longhaul: Longhaul, waiting: Sequence[str]) -> None:
    attempt = await scalar(longhaul, "SELECT attempt FROM responses WHERE id = :id", id=waiting[0])
    await claims.release(longhaul.db, waiting[0], attempt, WORKER)


def plots(results: Results) -> dict[str, str]:
    def found(*names: str) -> dict[str, str]:
        return {f"{name} ms": name for name in names}

    asked = found("retrieve", "input_items", "poll", "POST", "claim", "append", "context")
    kept = found("rescue", "resend", "find lost", "expire", "sweep", "delete events", "delete responses")
    return {
        "scale-stored": curves(results, "One response among many", "stored", "ms", asked, logarithmic=True),
        "scale-stored-kept": curves(results, "Maintenance", "stored", "ms", kept, logarithmic=True),
    }
