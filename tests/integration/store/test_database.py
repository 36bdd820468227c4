"""The pool while Postgres restarts, and what its errors become."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.api.errors import api_error_of
from app.sizes import LARGE_BYTES
from app.store import database, servers
from app.store.context import conversations
from app.store.context.items import FoundSizes, find_items, measure_items
from app.store.database import Database, PoolInUse, StatementTimeout, StoreBusy, StoreUnavailable
from app.store.responses import logs
from tests.integration.store.common import conversation, scalar
from tests.support.requests import message
from tests.support.rows import WORKER, Writer, alive, claim, claimed, queued
from tests.support.waiting import PATIENCE_SECONDS, until

PID = "SELECT pg_backend_pid()"
PROVOKED: list[tuple[str, type[Exception]]] = [
    ("SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)", StatementTimeout),
    ("SELECT pg_cancel_backend(pg_backend_pid())", StatementTimeout),
    ("DO $$ BEGIN RAISE disk_full; END $$", StoreUnavailable),
    ("DO $$ BEGIN RAISE serialization_failure; END $$", StoreBusy),
    ("DO $$ BEGIN RAISE SQLSTATE '53300'; END $$", StoreUnavailable),
    ("SET LOCAL transaction_read_only = on; INSERT INTO projects VALUES ('x')", StoreUnavailable),
    ("SELECT * FROM a_table_that_is_missing", StoreUnavailable),
    ("SELECT pg_terminate_backend(pg_backend_pid())", StoreUnavailable),
    ("SELECT 1 / 0", DBAPIError),
    ("SELECT no_such_function()", DBAPIError),
]


async def test_errors_of_a_real_postgres_are_told_apart(db: Database) -> None:
    for statements, raised in PROVOKED:
        with pytest.raises(Exception) as caught:
            async with db.begin() as connection:
                for statement in statements.split("; ") if "DO" not in statements else [statements]:
                    await connection.execute(text(statement))
        is_raised = isinstance(caught.value, DBAPIError) if raised is DBAPIError else type(caught.value) is raised
        assert is_raised, statements
        await db.ping()


async def test_a_server_that_became_a_standby_is_left(db: Database) -> None:
    other = db.sibling(1)

    first = await scalar(other, PID)
    assert await scalar(other, PID) == first
    with pytest.raises(StoreUnavailable):
        async with other.begin() as connection:
            await connection.execute(text("SET LOCAL transaction_read_only = on"))
            await connection.execute(text("INSERT INTO projects VALUES ('x')"))
    assert await scalar(other, PID) != first
    await other.close()


async def test_after_a_statement_without_an_answer_all_connections_of_the_pool_are_new(services: Any) -> None:
    """They may all lead to a server whose address has fallen silent."""
    other = Database(services.database_url, 2, driver_seconds=0.5)

    async def servers_of_both() -> set[int]:
        async with other.autocommit() as first, other.autocommit() as second:
            return {(await each.execute(text(PID))).scalar_one() for each in (first, second)}

    before = await servers_of_both()
    with pytest.raises(StoreBusy):
        await other.execute(text("SELECT pg_sleep(60)"))
    assert not before & await servers_of_both()
    await other.close()


@pytest.mark.parametrize(("parameter", "keeps"), [("", True), ("&pgbouncer=true", False)])
async def test_with_pgbouncer_no_session_keeps_a_prepared_statement_for_the_next_transaction(
    services: Any, db: Database, parameter: str, keeps: bool
) -> None:
    other = Database(f"{services.database_url}{parameter}", 1)
    await alive(db)
    for _ in range(2):
        row = await claim(other, await queued(other), WORKER)
        assert row is not None
        await logs.append(other, [Writer(row).begin()])
    for opened in (other.driver_connection(), other.pooled_driver_connection()):
        async with opened as connection:
            count = "SELECT count(*) FROM pg_prepared_statements WHERE statement NOT LIKE '%pg_prepared_statements%'"
            assert bool(await connection.fetchval(count)) is keeps
    await other.close()


async def test_a_pool_in_use_is_no_outage_and_long_work_leaves_a_connection(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "POOL_SECONDS", 0.2)
    small = Database(services.database_url, 2)
    try:
        async with small.begin(waits=True):
            other = asyncio.ensure_future(small.execute(text(PID), large=True))
            await until(lambda: small.long_work._lines)
            await small.ping()
            async with small.autocommit():
                with pytest.raises(PoolInUse) as raised:
                    await small.ping()
        assert await other
        error = api_error_of(raised.value)
        assert error is not None and "in use" in error.error.message
    finally:
        await small.close()


async def test_large_reads_leave_a_connection_and_the_small_ones_beside_them_do_not_wait(
    services: Any, db: Database
) -> None:
    small = Database(services.database_url, 2, 5.0)
    made = await conversation(db, *({**message("x" * n), "id": f"msg_{n}"} for n in (10, 2 * LARGE_BYTES)))
    running = (await claimed(db)).id
    reads: dict[str, Callable[[int], Awaitable[object]]] = {
        "measured references": lambda size: measure_items(small, "default", [f"msg_{size}"], size),
        "found references": lambda size: find_items(small, "default", [f"msg_{size}"], FoundSizes({}, 10, size)),
        "a log": lambda size: (logs.read_page if size == 10 else logs.read)(small, running),
        "a conversation": lambda size: conversations.get_item(small, "default", made, f"msg_{size}"),
    }
    for name, read in reads.items():
        with small.long_work.take("another"):
            large = [asyncio.ensure_future(read(2 * LARGE_BYTES)) for _ in range(10)]
            await until(lambda: small.long_work._lines)
            assert await asyncio.wait_for(read(10), PATIENCE_SECONDS), name
            assert not any(task.done() for task in large), name
        assert all(await asyncio.wait_for(asyncio.gather(*large), PATIENCE_SECONDS)), name
        assert small.long_work.held == 0
    await small.close()


TIMEOUT = text("SELECT current_setting('statement_timeout')")


async def test_what_is_large_may_take_longer_and_nothing_else(services: Any, db: Database) -> None:
    """Through PgBouncer nothing is set: it would keep it for whoever has the connection next."""
    url = services.database_url
    for of, large, expected in (
        (url, False, ["5s", "5s"]),
        (url, True, ["1min", "5s"]),
        (f"{url}&pgbouncer=true", False, ["0", "0"]),
    ):
        limited = Database(of, 1, 5.0)
        async with limited.begin(large=large) as connection:
            within = (await connection.execute(TIMEOUT)).scalar_one()
        assert [within, (await limited.execute(TIMEOUT))[0][0]] == expected
        await limited.close()
    assert [row[0] for row in await db.execute(TIMEOUT, large=True)] == ["0"], "workers keep the one of their role"


async def test_a_connection_whose_caller_leaves_while_it_is_made_is_closed(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[asyncpg.Connection] = []

    async def never(connection: asyncpg.Connection, statement: str) -> None:
        begun.append(connection)
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncpg.Connection, "execute", never)
    connecting = asyncio.create_task(servers.Servers(services.database_url, 5.0).connect())
    await until(lambda: begun)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert begun[0].is_closed()
