"""Nothing that is done to one response, no dispatch and no look of maintenance or operators reads what is only stored.

The statements are the product's own: a database notes them while the work is done, and Postgres explains them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson
from sqlalchemy import event

from app.queue.publisher import TaskQueue
from app.store import retention
from app.store.context import contents
from app.store.database import Database
from app.store.operations import known, listing, snapshot
from app.store.operations.filters import ResponseFilter
from app.store.paging import Page
from app.store.queue import dispatch
from app.store.responses import claims, endings, logs, lookup
from app.streaming.pubsub import PubSub
from config.settings import Settings
from tests.integration.store.common import answered, sql
from tests.support.maintenance import maintenance_of
from tests.support.rows import WORKER, Writer, claim, merge_all, queued
from tests.support.waiting_rows import QUEUE, waiting, with_slots

STORED = 5_000
"""So many that Postgres wants its indexes."""
DAY = timedelta(days=1)
TABLES = frozenset({"responses", "chunks", "conversation_items"})
"""Those that grow."""
PAGES = 700
"""A statement that only reads touches fewer of them: that many rows are in a tenth of what is stored."""
_EXPLAINABLE = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", re.IGNORECASE)
_SETS = re.compile(r"\s*SET LOCAL|\bset_config\(", re.IGNORECASE)
_READS = re.compile(r"(?!.*\b(INSERT INTO|UPDATE|DELETE FROM)\b)", re.IGNORECASE | re.DOTALL)
_RESPONSES = """
    INSERT INTO responses (id, project, model, queue, priority, status, background, stream, store, request, created_at,
        input_bytes, cost, chain_length, context_bytes, layout, finished_at, output, started_at, attempt, log,
        batch_id, batch_line, custom_id)
    SELECT 'resp_' || n, 'p' || n % 20, 'scripted', 'model.scripted', 6, 'completed', true, false, true,
        '{"input": []}', ended, 0, 100, 1, 0, 1, ended, '[]', ended, 1, 'merged',
        CASE n % 4 WHEN 0 THEN 'batch_' || n % 10 END, CASE n % 4 WHEN 0 THEN n END, CASE n % 4 WHEN 0 THEN 'a' END
    FROM generate_series(1, :count) n,
        LATERAL (SELECT now() - make_interval(secs => n * 72000 / :count) AS ended) e
"""
_CHUNKS = """
    INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)
    SELECT id, 0, 3, 1, true, '', '', 0 FROM responses WHERE log = 'merged' AND id <> :id
"""


class Noted:
    """Notes the statements of a database while it is entered, with the parameters of the last call of each."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.made: dict[str, Any] = {}

    async def __aenter__(self) -> Noted:
        event.listen(self._db.engine.sync_engine, "before_cursor_execute", self._note)
        async with self._db.driver_connection() as connection:
            connection.add_query_logger(self._note_driver)
        return self

    async def __aexit__(self, *error: object) -> None:
        event.remove(self._db.engine.sync_engine, "before_cursor_execute", self._note)
        async with self._db.driver_connection() as connection:
            connection.remove_query_logger(self._note_driver)

    def _note(self, _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        self.made[statement] = parameters

    def _note_driver(self, made: asyncpg.connection.LoggedQuery) -> None:
        self.made[made.query] = tuple(made.args)

    async def faults(self) -> list[str]:
        """What is wrong with the plans of these statements."""
        found = []
        async with self._db.begin(large=True) as connection:
            for statement, parameters in self.made.items():
                if _SETS.search(statement) and len(statement) < 300:
                    await connection.exec_driver_sql(statement, parameters)
                elif _EXPLAINABLE.match(statement):
                    only_reads = _READS.match(statement)
                    options = "ANALYZE, BUFFERS, TIMING OFF" if only_reads else "COSTS OFF"
                    explained = f"EXPLAIN ({options}, FORMAT JSON) {statement}"
                    answer = (await connection.exec_driver_sql(explained, parameters)).scalar_one()
                    plan = (orjson.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
                    found += [f"reads all of {table}: {statement}" for table in _scanned(plan)]
                    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] if only_reads else 0
                    found += [f"{pages} pages: {statement}"] if pages > PAGES else []
        return found


def _scanned(plan: dict[str, Any]) -> Iterator[str]:
    """The relations of sequential scans anywhere in a plan."""
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] in TABLES:
        yield plan["Relation Name"]
    for each in plan.get("Plans", ()):
        yield from _scanned(each)


async def _store(db: Database) -> str:
    """So many merged responses, some of them of batches; returns the id of one that was answered."""
    template = (await answered(db)).row.id
    await merge_all(db)
    await sql(db, _RESPONSES, count=STORED)
    await sql(db, _CHUNKS, id=template)
    await sql(db, "VACUUM ANALYZE responses, chunks")
    return template


async def test_nothing_that_is_done_to_one_response_and_no_look_reads_what_is_only_stored(
    services: Any, db: Database, pubsub: PubSub
) -> None:
    settings = Settings(redis_url=services.redis_url)
    queue = TaskQueue(settings)
    maintenance = maintenance_of(settings, db, pubsub, queue)
    template = await _store(db)  # the statistics know of nothing that waits
    one, other, *_ = waits = [await queued(db) for _ in range(3)]
    await with_slots(db, 4)
    now = datetime.now(UTC)

    async def run() -> None:
        row = await claim(db, one, WORKER)
        assert row is not None
        assert await logs.append(db, [Writer(row).begin()])
        await claims.release(db, row.id, row.attempt, WORKER)

    works: dict[str, Callable[[], Awaitable[object]]] = {
        "insert": lambda: queued(db, previous_response_id=template),
        "retrieve": lambda: lookup.find(db, template),
        "wait for ends": lambda: lookup.find_ended(db, [template, *waits]),
        "claim, append, give back": run,
        "cancel": lambda: endings.cancel(db, other, None),
        "read events": lambda: logs.read(db, template),
        "context": lambda: contents.chain_items(db, "default", template),
        "rescue": maintenance.release_dead_workers,
        "resend": maintenance.send_released,
        "find lost": maintenance.redeliver,
        "expire": maintenance.expire,
        "sweep": maintenance.sweep,
        "merge": lambda: retention.merge_finished(db, now, 500),
        "delete events": lambda: retention.delete_events(db, now - timedelta(hours=19), 1),
        "delete responses": lambda: retention.delete_expired(db, now - DAY, now - DAY, 1),
        "one response": lambda: known.find(db, waits[-1]),
        "what is unfinished": lambda: listing.find_unfinished(db, 10_000),
        "snapshot": lambda: snapshot.read(db, 3600.0),
        "snapshot by key": lambda: snapshot.read(db, 3600.0, by_key=True),
        "list of a batch": lambda: listing.find_page(db, ResponseFilter(batch="batch_4"), Page(20, descending=True)),
        "dispatch of long lines": lambda: dispatch.dispatch(db, QUEUE),
    }
    found = {}
    try:
        for name, work in works.items():
            if name.startswith("dispatch"):
                for hours in (None, 24.0):
                    await waiting(db, "long", 1000, window=hours and 3600 * hours)
            async with Noted(db) as noted:
                await work()
            assert noted.made, name
            found[name] = await noted.faults()
        async with Noted(db) as noted:
            await sql(db, "SELECT count(*) FROM responses WHERE request_bytes < 0")
        found["a count of all"] = await noted.faults()
    finally:
        await queue.close()
    assert [name for name, faults in found.items() if faults] == ["a count of all"], found
