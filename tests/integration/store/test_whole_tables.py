"""Nothing that is done to one response, and no look of maintenance, reads a table as a whole among 10,000 stored ones.

The statements are the product's own: a database notes them while the work is done, and Postgres explains them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson
from sqlalchemy import event, text

from app.maintenance.loop import Maintenance
from app.queue.publisher import TaskQueue
from app.store import retention
from app.store.context import contents
from app.store.database import Database
from app.store.responses import claims, endings, logs, lookup
from app.streaming.pubsub import PubSub
from config.settings import Settings
from tests.support.rows import WORKER, Writer, claim, claimed, queued

STORED = 10_000
"""So many that Postgres wants its indexes."""
DAY = timedelta(days=1)
TABLES = frozenset({"responses", "chunks", "conversation_items"})
"""Those that grow."""
_EXPLAINABLE = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", re.IGNORECASE)
_COLUMNS = """
    SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns
    WHERE table_name = :table AND NOT column_name = ANY(:own) AND is_generated = 'NEVER' AND is_identity = 'NO'
"""
_ID = "'resp_' || lpad(to_hex(i), 12, '0') || substr(md5(i::text), 1, 20)"
_COPIES = {
    "responses": (
        ["id", "created_at", "started_at", "finished_at", "log"],
        f"""
        INSERT INTO responses ({{columns}}, id, created_at, started_at, finished_at, log)
        SELECT {{columns}}, {_ID}, ended, ended, ended, 'merged' FROM responses t, generate_series(1, :count) i,
            LATERAL (SELECT now() - make_interval(secs => i % 72000) AS ended) n WHERE t.id = :id
        """,
    ),
    "chunks": (
        ["response_id"],
        f"""
        INSERT INTO chunks ({{columns}}, response_id)
        SELECT {{columns}}, {_ID} FROM chunks t, generate_series(1, :count) i WHERE t.response_id = :id
        """,
    ),
}


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

    async def whole_tables(self) -> set[str]:
        """The tables that a statement would read as a whole."""
        found = set[str]()
        async with self._db.autocommit() as connection:
            for statement, parameters in self.made.items():
                if _EXPLAINABLE.match(statement):
                    plan = await connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
                    found |= set(_scanned(plan.scalar_one()))
        return found


def _scanned(node: Any) -> Iterator[str]:
    """The relations of sequential scans anywhere in a plan."""
    for each in node if isinstance(node, list) else orjson.loads(node) if isinstance(node, str) else [node]:
        if isinstance(each, dict):
            if each.get("Node Type") == "Seq Scan" and each.get("Relation Name") in TABLES:
                yield each["Relation Name"]
            yield from _scanned([value for value in each.values() if isinstance(value, dict | list)])
        elif isinstance(each, list):
            yield from _scanned(each)


async def _store(db: Database) -> str:
    """Copies one merged response until there are STORED; returns its id."""
    writer = Writer(await claimed(db))
    await logs.append(db, [writer.begin()])
    await logs.append(db, [writer.finish()])
    template = writer.row.id
    await retention.merge_finished(db, datetime.now(UTC) + DAY)
    async with db.begin() as connection:
        for table, (own, copy) in _COPIES.items():
            columns = (await connection.execute(text(_COLUMNS), {"table": table, "own": own})).scalar_one()
            await connection.execute(text(copy.format(columns=columns)), {"count": STORED, "id": template})
    async with db.autocommit() as connection:
        await connection.execute(text("VACUUM ANALYZE responses, chunks"))
    return template


async def test_a_statement_that_reads_a_whole_table_is_noticed(db: Database) -> None:
    await _store(db)
    async with Noted(db) as noted, db.begin() as connection:
        await connection.execute(text("SELECT count(*) FROM responses WHERE request_bytes < 0"))
    assert await noted.whole_tables() == {"responses"}


async def test_nothing_that_is_done_to_one_response_reads_a_whole_table(
    services: Any, db: Database, pubsub: PubSub
) -> None:
    settings = Settings(redis_url=services.redis_url)
    queue = TaskQueue(settings)
    maintenance = Maintenance(settings, db, pubsub, queue)
    template = await _store(db)
    waiting = [await queued(db) for _ in range(3)]
    now = datetime.now(UTC)

    async def run() -> None:
        row = await claim(db, waiting[0], WORKER)
        assert row is not None
        assert await logs.append(db, [Writer(row).begin()])
        await claims.release(db, row.id, row.attempt, WORKER)

    works: dict[str, Callable[[], Awaitable[object]]] = {
        "insert": lambda: queued(db, previous_response_id=template),
        "retrieve": lambda: lookup.find(db, template),
        "wait for ends": lambda: lookup.find_ended(db, [template, *waiting]),
        "claim, append, give back": run,
        "cancel": lambda: endings.cancel(db, waiting[1], None),
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
    }
    found = {}
    try:
        for name, work in works.items():
            async with Noted(db) as noted:
                await work()
            assert noted.made, name
            found[name] = await noted.whole_tables()
    finally:
        await queue.close()
    assert not any(found.values()), found
