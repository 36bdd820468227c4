"""The pool while Postgres restarts, and what its errors become."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.api.errors import api_error_of
from app.store import database, servers
from app.store.database import Database, PoolInUse, StatementTimeout, StoreBusy, StoreUnavailable
from app.store.responses import logs
from app.store.trouble import Trouble, trouble_of
from tests.support.rows import WORKER, Writer, alive, claim, queued
from tests.support.waiting import until

PID = text("SELECT pg_backend_pid()")
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


@pytest.mark.parametrize(("statements", "raised"), PROVOKED)
async def test_errors_of_a_real_postgres_are_told_apart(db: Database, statements: str, raised: type[Exception]) -> None:
    with pytest.raises(Exception) as caught:
        async with db.begin() as connection:
            for statement in statements.split("; ") if "DO" not in statements else [statements]:
                await connection.execute(text(statement))
    assert type(caught.value) is raised or (raised is DBAPIError and isinstance(caught.value, DBAPIError))
    await db.ping()


async def test_a_server_that_became_a_standby_is_left(db: Database) -> None:
    other = db.sibling(1)

    async def server() -> int:
        async with other.autocommit() as connection:
            return int((await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one())

    first = await server()
    assert await server() == first
    with pytest.raises(StoreUnavailable):
        async with other.begin() as connection:
            await connection.execute(text("SET LOCAL transaction_read_only = on"))
            await connection.execute(text("INSERT INTO projects VALUES ('x')"))
    assert await server() != first
    await other.close()


async def test_a_statement_that_the_driver_gives_up_is_busy_and_a_connect_without_an_answer_is_away(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> None:
        raise TimeoutError

    with pytest.raises(StoreBusy):
        async with db.begin():
            raise TimeoutError
    other = db.sibling(1)
    monkeypatch.setattr(asyncpg, "connect", never)
    with pytest.raises(StoreUnavailable) as caught:
        await other.ping()
    assert type(caught.value) is StoreUnavailable
    await other.close()


async def test_a_value_that_the_driver_cannot_send_is_bad_data(db: Database) -> None:
    with pytest.raises(Exception) as caught:
        async with db.driver_connection() as connection:
            await connection.fetch("SELECT $1::int", "x")
    assert trouble_of(caught.value) is Trouble.BAD_DATA


async def test_a_connection_that_was_closed_while_idle_is_replaced(db: Database) -> None:
    other = db.sibling(1)
    await other.ping()
    async with other.pooled_driver_connection() as connection:
        pass
    connection.terminate()
    await other.ping()
    await other.close()


async def test_new_connections_that_are_closed_at_once_mean_that_postgres_is_away(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = asyncpg.connect

    async def closed(*args: object, **options: object) -> asyncpg.Connection:
        connection = await connect(*args, **options)
        if not healthy:
            connection.terminate()
        return connection

    monkeypatch.setattr(asyncpg, "connect", closed)
    other = db.sibling(1)
    for healthy in (False, True, False):
        if healthy:
            await other.ping()
            async with other.pooled_driver_connection() as idle:
                pass
            idle.terminate()
        else:
            with pytest.raises(StoreUnavailable) as caught:
                await other.ping()
            assert type(caught.value) is StoreUnavailable
    await other.close()


async def test_after_a_statement_without_an_answer_all_connections_of_the_pool_are_new(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may all lead to a server whose address has fallen silent."""
    monkeypatch.setattr(servers, "STATEMENT_SECONDS", 0.5)
    other = Database(services.database_url, 2)
    async with other.autocommit() as first, other.autocommit() as second:
        before = {(await each.execute(PID)).scalar_one() for each in (first, second)}
    with pytest.raises(StoreBusy):
        await other.execute(text("SELECT pg_sleep(60)"))
    async with other.autocommit() as first, other.autocommit() as second:
        after = {(await each.execute(PID)).scalar_one() for each in (first, second)}
    assert not before & after
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
        async with small.large_read("a"):
            other = asyncio.ensure_future(small.long_work.wait("a"))
            await asyncio.sleep(0)
            assert not other.done()
            async with small.autocommit():
                await small.ping()
                async with small.autocommit():
                    with pytest.raises(PoolInUse) as raised:
                        await small.ping()
        (await other).release()
        error = api_error_of(raised.value)
        assert error is not None and "in use" in error.error.message
    finally:
        await small.close()


TIMEOUT = text("SELECT current_setting('statement_timeout')")


async def timeouts(url: str, *, large: bool) -> list[str]:
    """The time-out of a transaction, and that of the statement after it."""
    limited = Database(url, 1, 5.0)
    try:
        async with limited.begin(large=large) as connection:
            within = (await connection.execute(TIMEOUT)).scalar_one()
        return [within, (await limited.execute(TIMEOUT))[0][0]]
    finally:
        await limited.close()


async def test_what_is_large_may_take_longer_and_nothing_else(services: Any) -> None:
    assert await timeouts(services.database_url, large=False) == ["5s", "5s"]
    assert await timeouts(services.database_url, large=True) == ["1min", "5s"]
    limited = Database(services.database_url, 1, 5.0)
    assert [row[0] for row in await limited.execute(TIMEOUT, large=True)] == ["1min"]
    await limited.close()


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


async def test_a_session_that_keeps_nothing_has_the_time_out_of_the_driver(services: Any) -> None:
    """PgBouncer would keep it for whoever has the connection next."""
    assert await timeouts(f"{services.database_url}&pgbouncer=true", large=False) == ["0", "0"]


async def test_workers_and_maintenance_keep_the_time_out_of_their_role(db: Database) -> None:
    assert [row[0] for row in await db.execute(TIMEOUT, large=True)] == ["0"]


async def test_a_statement_that_takes_too_long_is_ended_and_the_connection_serves_the_next(services: Any) -> None:
    limited = Database(services.database_url, 1, 0.5)
    with pytest.raises(StatementTimeout) as raised:
        await limited.execute(text("SELECT pg_sleep(60)"))
    error = api_error_of(raised.value)
    assert error is not None and error.error.code == "statement_timeout"
    await limited.ping()
    await limited.close()
