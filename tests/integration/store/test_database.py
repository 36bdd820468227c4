"""The pool while Postgres restarts, and what its errors become."""

from __future__ import annotations

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.store.database import Database, StoreBusy, StoreUnavailable
from app.store.trouble import Trouble, trouble_of

PROVOKED: list[tuple[str, type[Exception]]] = [
    ("SET LOCAL statement_timeout = 1; SELECT pg_sleep(60)", StoreBusy),
    ("SELECT pg_cancel_backend(pg_backend_pid())", StoreBusy),
    ("DO $$ BEGIN RAISE disk_full; END $$", StoreUnavailable),
    ("DO $$ BEGIN RAISE serialization_failure; END $$", StoreBusy),
    ("DO $$ BEGIN RAISE SQLSTATE '53300'; END $$", StoreUnavailable),
    ("SET LOCAL transaction_read_only = on; CREATE TABLE t ()", StoreUnavailable),
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
            await connection.execute(text("CREATE TABLE t ()"))
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
