"""Connections to Postgres: one pool per process, and one exception for all the ways in which Postgres is away.

`trouble.py` says which errors those are.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, TypeAlias, TypeVar

import asyncpg
import orjson
from sqlalchemy import ExceptionContext, Executable, Row, event, text
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from app.bounds import Bound
from app.heavy import PROJECT, Threads
from app.store.servers import CONNECT_SECONDS, STATEMENT_SECONDS, Servers
from app.store.trouble import Trouble, reason, trouble_of

log = logging.getLogger("longhaul.store")

LARGE_READS = 2
"""Large rows that one process reads at once."""
POOL_SECONDS = 30
"""How long a request waits for a connection of the pool: overload is no outage."""
CALLER_SECONDS = 15.0
"""The `statement_timeout` of what callers cause, reads as well as writes. What is large may take STATEMENT_SECONDS."""
RETRY_SECONDS = 0.5
BUSY_SECONDS = 300.0
"""How long a statement is repeated that Postgres itself ends each time: by a time-out, for instance."""

_TIME_FOR_LARGE = text(f"SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'")
_UNNAMED = {"prepared_statement_cache_size": 0, "prepared_statement_name_func": lambda: ""}
"""Options for sessions that keep no prepared statement for the next transaction."""

T = TypeVar("T")
Connection: TypeAlias = AsyncConnection
"""For those who hand one from `Database.begin` on to functions of the store."""


class StoreUnavailable(Exception):
    """Postgres cannot be reached, or went away during a statement. Nobody knows whether the last commit took effect."""


class StoreBusy(StoreUnavailable):
    """Postgres works, and ended this statement: it timed out, was cancelled, or lost a conflict.

    It may be repeated, but not for ever (`Patience`).
    """


class StatementTimeout(StoreBusy):
    """The statement took too long, and was ended: by Postgres, or by the driver."""


class StoreLocked(StoreBusy):
    """Another transaction holds a lock that the statement needs."""


class StoreMismatch(StoreBusy):
    """Postgres works, and a right or a column that the statement needs is missing there; logged as an error."""


class PoolInUse(StoreUnavailable):
    """All connections of this process were in use for POOL_SECONDS. Nothing was sent to Postgres."""


@contextmanager
def _named_troubles() -> Iterator[None]:
    """Raises StoreUnavailable, or one of its kinds, in place of what the driver and SQLAlchemy raise for them."""
    try:
        yield
    except Exception as error:
        kind = _KINDS.get(trouble_of(error))
        if kind is None:
            raise
        if kind is StoreMismatch:
            _log_mismatch(reason(error))
        raise kind(reason(error)) from error


def _log_mismatch(missing: str) -> None:
    """Logs a mismatch once a minute, however often its statement is repeated."""
    now = time.monotonic()
    if now > _mismatches.get(missing, -math.inf) + MISMATCH_SECONDS:
        _mismatches[missing] = now
        log.error("the schema or the role's rights are not those of this version (`longhaul migrate`): %s", missing)


MISMATCH_SECONDS = 60.0
_mismatches: dict[str, float] = {}


_KINDS: Mapping[Trouble | None, type[StoreUnavailable]] = {
    Trouble.AWAY: StoreUnavailable,
    Trouble.REFUSED: StoreUnavailable,
    Trouble.MISMATCH: StoreMismatch,
    Trouble.NO_CONNECTION: PoolInUse,
    Trouble.TOO_LONG: StatementTimeout,
    Trouble.BUSY: StoreBusy,
    Trouble.LOCKED: StoreLocked,
}
_HANDED_OUT = "longhaul.handed_out"


def _refuse_closed(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
    """Makes the pool replace a connection that was closed while it was idle, for example by a restart of Postgres.

    Raises ConnectionResetError if a new connection is closed already: then Postgres is away.
    """
    if not connection.driver_connection.is_closed():
        record.info[_HANDED_OUT] = True  # the pool clears `info` with each new connection
    elif _HANDED_OUT in record.info:
        raise DisconnectionError
    else:
        raise ConnectionResetError("Postgres closed a new connection")


def _leave_server(context: ExceptionContext) -> None:
    """Closes all connections of the pool once their server has become a standby, or did not answer in time.

    New ones find the primary. After a failover the old server's address may be silent: then each connection would have
    to wait for its own time-out.
    """
    error = context.original_exception
    if isinstance(error, TimeoutError):
        context.invalidate_pool_on_disconnect = True  # of the connection itself, SQLAlchemy knows
    elif isinstance(error.__cause__, asyncpg.ReadOnlySQLTransactionError):
        context.is_disconnect = True


def from_json(stored: str) -> Any:
    """The value of stored JSON; None if this process cannot read it, because Postgres checks less than orjson does.

    It must not raise: the rows of a statement are decoded together, and the others would be lost with this one.
    """
    try:
        return orjson.loads(stored)
    except orjson.JSONDecodeError as error:
        log.error("stored JSON cannot be read: %s", error.msg)
        return None


class Patience:
    """How long one action is repeated: while Postgres is away without an end, but for BUSY_SECONDS while it is busy."""

    def __init__(self) -> None:
        self._busy_since: float | None = None

    async def wait(self, error: StoreUnavailable) -> None:
        """Returns when the action may be repeated. Raises `error` if it has been repeated for long enough."""
        now = asyncio.get_running_loop().time()
        if not isinstance(error, StoreBusy):
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now
        elif now - self._busy_since > BUSY_SECONDS:
            raise error
        await asyncio.sleep(RETRY_SECONDS)


async def retry_until_available(action: Callable[[], Awaitable[T]]) -> T:
    """Calls `action` until Postgres answers, and returns what it returns. Raises every other error of `action`.

    Raises StoreBusy if Postgres answers, but ends the action's statement again and again.
    """
    patience = Patience()
    while True:
        try:
            return await action()
        except StoreUnavailable as error:
            await patience.wait(error)


class Database:
    """A pool of connections. Opens nothing until it is used; survives restarts of the server."""

    def __init__(
        self,
        url: str,
        pool_size: int = 10,
        statement_seconds: float | None = None,
        driver_seconds: float | None = STATEMENT_SECONDS,
    ) -> None:
        """`url` is that of DATABASE_URL; it may name several servers (`servers.py`).

        A statement may take `statement_seconds`, which costs no round trip, or the time that the server allows; the
        driver waits for it for `driver_seconds`, or without an end.
        """
        self._url = url
        self._statement_seconds = statement_seconds
        servers = Servers(url, statement_seconds, driver_seconds)
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=servers.connect,
            connect_args=_UNNAMED if servers.keeps_nothing else {},
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_SECONDS,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,  # an error's text must not hold a prompt
            json_serializer=lambda value: orjson.dumps(value).decode(),
            json_deserializer=from_json,
        )
        # Setting it for each statement would cost a GET 3 % of its CPU.
        self._transactions = self._engine.execution_options(isolation_level="READ COMMITTED")
        event.listen(self._engine.sync_engine, "checkout", _refuse_closed)
        event.listen(self._engine.sync_engine, "handle_error", _leave_server)
        self._driver: asyncpg.Connection | None = None
        self._driver_lock = asyncio.Lock()
        self.large_reads = Bound("large reads", LARGE_READS, shares=False)
        self._large_threads = Threads("large reads", LARGE_READS)
        """As many as there are large reads, so each of them finds one free."""
        self.long_work = Bound("long transactions", max(1, pool_size - 1))
        """Every statement that may take long holds one: a connection of the pool is left for the rest, and no project
        has all others."""

    def sibling(self, pool_size: int, driver_seconds: float | None = STATEMENT_SECONDS) -> Database:
        """The same database with a pool of its own, for another event loop or for statements that take longer."""
        return Database(self._url, pool_size, driver_seconds=driver_seconds)

    @property
    def engine(self) -> AsyncEngine:
        return self._engine

    @asynccontextmanager
    async def begin(self, *, large: bool = False, waits: bool = False) -> AsyncIterator[AsyncConnection]:
        """One transaction, committed at the end. Raises StoreUnavailable.

        The statements of a `large` one may take STATEMENT_SECONDS each, whatever holds for the others. A transaction
        that is large, or that `waits` for locks of others, holds one of `long_work`, and projects take turns. Nobody
        begins one within another, of either kind: it could wait for itself.
        """
        with await self._turn(large or waits), _named_troubles():
            async with self._transactions.begin() as connection:
                if large and self._statement_seconds is not None:
                    await connection.execute(_TIME_FOR_LARGE)
                yield connection

    @asynccontextmanager
    async def autocommit(self, *, waits: bool = False) -> AsyncIterator[AsyncConnection]:
        """A connection for single statements: each commits by itself, without BEGIN. Raises StoreUnavailable.

        `waits`: see `begin`.
        """
        with await self._turn(waits), _named_troubles():
            async with self._engine.connect() as connection:
                yield connection

    async def execute(
        self,
        statement: Executable,
        values: Mapping[str, Any] | None = None,
        *,
        large: bool = False,
        waits: bool = False,
    ) -> Sequence[Row[Any]]:
        """Runs one statement, which commits by itself, and returns its rows. Raises StoreUnavailable.

        `large` and `waits`: see `begin`.
        """
        needs_time = large and self._statement_seconds is not None
        connecting = self.begin(large=True) if needs_time else self.autocommit(waits=large or waits)
        async with connecting as connection:
            result = await connection.execute(statement, values)
            return result.all() if result.returns_rows else ()

    async def _turn(self, takes_long: bool) -> AbstractContextManager[object]:
        return await self.long_work.wait(PROJECT.get()) if takes_long else nullcontext()

    @asynccontextmanager
    async def driver_connection(self) -> AsyncIterator[asyncpg.Connection]:
        """The driver's own connection, beside the pool, used by one caller at a time. Raises StoreUnavailable.

        It is for the journal's append and for inserts of responses, because it skips SQLAlchemy's layers
        (docs/internals/decisions/journal.md). After any error the next caller gets a new connection. A
        statement outside of `transaction()` commits by itself.
        """
        async with self._driver_lock:
            with _named_troubles():
                if self._driver is None or self._driver.is_closed():
                    self._driver = await self._connect()
                driver = self._driver
                try:
                    yield driver
                except BaseException:
                    driver.terminate()
                    raise

    @asynccontextmanager
    async def pooled_driver_connection(self) -> AsyncIterator[asyncpg.Connection]:
        """`driver_connection` of the pool, for what may take long beside it. Raises StoreUnavailable."""
        with _named_troubles():
            async with self._engine.connect() as connection:
                driver: asyncpg.Connection = (await connection.get_raw_connection()).driver_connection
                try:
                    yield driver
                except BaseException:
                    driver.terminate()  # the pool replaces it
                    raise

    async def _connect(self) -> asyncpg.Connection:
        """A connection made as the pool makes them, which the pool then forgets."""
        pooled = await self._engine.raw_connection()
        connection: asyncpg.Connection = pooled.driver_connection
        pooled.detach()
        return connection

    @asynccontextmanager
    async def large_read(self, project: str | None) -> AsyncIterator[Threads]:
        """A turn to read something large, and a thread to work on it, for which nobody waits within a transaction.

        The statement that reads it is `large`, too.
        """
        with await self.large_reads.wait(project):
            yield self._large_threads

    async def ping(self) -> None:
        """Raises StoreUnavailable if Postgres does not answer."""
        await self.execute(text("SELECT 1"))

    async def close(self) -> None:
        if self._driver is not None:
            with suppress(Exception):
                await self._driver.close(timeout=CONNECT_SECONDS)
            self._driver = None
        await self._engine.dispose()


async def fetch(
    on: Connection | asyncpg.Connection, statement: str, values: Sequence[object]
) -> Sequence[Sequence[Any]]:
    """Runs a statement in the driver's form, whose parameters have numbers; returns its rows."""
    if isinstance(on, AsyncConnection):
        return (await on.exec_driver_sql(statement, tuple(values))).all()
    rows: Sequence[Sequence[Any]] = await on.fetch(statement, *values)
    return rows


async def one(
    make: Callable[..., T],
    on: Database | Connection,
    statement: Executable,
    values: Mapping[str, Any] | None = None,
) -> T | None:
    """Returns what `make` makes of the columns of the statement's only row; None: there is no row."""
    row: Row[Any] | None = next(iter(await on.execute(statement, values)), None)
    return None if row is None else make(**row._mapping)
