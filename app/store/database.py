"""Connections to Postgres: one pool per process, and one exception for all the ways in which Postgres is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg
import orjson
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, InvalidRequestError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

CONNECT_SECONDS = 5
POOL_SECONDS = 30
"""How long a request waits for a connection of the pool: overload is no outage."""
STATEMENT_SECONDS = 60
RETRY_SECONDS = 0.5

T = TypeVar("T")

_UNAVAILABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # Postgres closed the connection, and the driver has not noticed yet
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.UndefinedTableError,  # before `longhaul migrate`
    asyncpg.UndefinedColumnError,  # the same, of a later revision
    asyncpg.DeadlockDetectedError,  # the transaction was rolled back: it can be repeated
    OSError,
    TimeoutError,
)

_CLOSED_AT_CHECKOUT = "This connection is closed"
"""SQLAlchemy 2.1's text for a checkout that `_refuse_closed` refused twice."""


class StoreUnavailable(Exception):
    """Postgres cannot be reached, or went away during a statement. Nobody knows whether the last commit took effect."""


def _is_unavailable(error: BaseException) -> bool:
    if isinstance(error, DBAPIError):
        if error.connection_invalidated or isinstance(error, InterfaceError | OperationalError):
            return True
        cause = getattr(error.orig, "__cause__", None) or error.orig
        return isinstance(cause, _UNAVAILABLE)
    if isinstance(error, InvalidRequestError):  # a new connection was closed, too, before the pool could hand it over
        return str(error) == _CLOSED_AT_CHECKOUT
    # SQLAlchemy wraps the driver's errors while it connects for `Database.driver_connection`: the cause decides.
    return isinstance(error, (*_UNAVAILABLE, PoolTimeout)) or isinstance(error.__cause__, _UNAVAILABLE)


def _refuse_closed(connection: Any, _record: object, _proxy: object) -> None:
    """Makes the pool replace a connection that was closed while it was idle, for example by a restart of Postgres."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError


async def retry_until_available(action: Callable[[], Awaitable[T]]) -> T:
    """Calls `action` until Postgres answers, and returns what it returns. Raises every other error of `action`."""
    while True:
        try:
            return await action()
        except StoreUnavailable:
            await asyncio.sleep(RETRY_SECONDS)


class Database:
    """A pool of connections. Opens nothing until it is used; survives restarts of the server."""

    def __init__(self, dsn: str, pool_size: int = 10) -> None:
        self._engine = create_async_engine(
            dsn,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_SECONDS,
            hide_parameters=True,  # an error's text must not hold a prompt
            json_serializer=lambda value: orjson.dumps(value).decode(),
            json_deserializer=orjson.loads,
            connect_args={"timeout": CONNECT_SECONDS, "command_timeout": STATEMENT_SECONDS},
        )
        event.listen(self._engine.sync_engine, "checkout", _refuse_closed)
        self._driver: asyncpg.Connection | None = None
        self._driver_lock = asyncio.Lock()

    @property
    def engine(self) -> AsyncEngine:
        return self._engine

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """One transaction, committed at the end. Raises StoreUnavailable."""
        try:
            async with self._engine.begin() as connection:
                yield connection
        except Exception as error:
            if _is_unavailable(error):
                raise StoreUnavailable(type(error).__name__) from error
            raise

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """A connection for single statements: each commits by itself, without BEGIN. Raises StoreUnavailable."""
        try:
            async with self._engine.connect() as connection:
                yield await connection.execution_options(isolation_level="AUTOCOMMIT")
        except Exception as error:
            if _is_unavailable(error):
                raise StoreUnavailable(type(error).__name__) from error
            raise

    @asynccontextmanager
    async def driver_connection(self) -> AsyncIterator[asyncpg.Connection]:
        """The driver's own connection, beside the pool, used by one caller at a time. Raises StoreUnavailable.

        It is for the journal's append alone, because it skips SQLAlchemy's layers
        (docs/decisions/journal-statement.md). After any error the next caller gets a new connection. A
        statement outside of `transaction()` commits by itself.
        """
        async with self._driver_lock:
            try:
                if self._driver is None or self._driver.is_closed():
                    self._driver = await self._connect()
                yield self._driver
            except BaseException as error:
                if self._driver is not None:
                    self._driver.terminate()
                    self._driver = None
                if _is_unavailable(error):
                    raise StoreUnavailable(type(error).__name__) from error
                raise

    async def _connect(self) -> asyncpg.Connection:
        """A connection made as the pool makes them, which the pool then forgets."""
        pooled = await self._engine.raw_connection()
        connection: asyncpg.Connection = pooled.driver_connection
        pooled.detach()
        return connection

    async def ping(self) -> None:
        """Raises StoreUnavailable if Postgres does not answer."""
        async with self.autocommit() as connection:
            await connection.execute(text("SELECT 1"))

    async def close(self) -> None:
        if self._driver is not None:
            with suppress(Exception):
                await self._driver.close(timeout=CONNECT_SECONDS)
            self._driver = None
        await self._engine.dispose()
