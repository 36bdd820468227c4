"""The way to Postgres: one pool per process, and one exception for "it is not there"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import asyncpg
import orjson
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

CONNECT_SECONDS = 5
POOL_SECONDS = 30
"""A request waits this long for its turn at the pool; overload is no outage."""
STATEMENT_SECONDS = 60
RETRY_SECONDS = 0.5

T = TypeVar("T")

_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # Postgres said goodbye, and the connection does not know yet that it is closed
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.UndefinedTableError,  # nobody has migrated yet
    asyncpg.DeadlockDetectedError,  # nothing was done: it can be repeated
    OSError,
    TimeoutError,
)


class StoreUnavailable(Exception):
    """Postgres cannot be reached, or went away in the middle. Whether the last commit took effect is unknown."""


def _is_away(error: BaseException) -> bool:
    if isinstance(error, DBAPIError):
        if error.connection_invalidated or isinstance(error, InterfaceError | OperationalError):
            return True
        cause = getattr(error.orig, "__cause__", None) or error.orig
        return isinstance(cause, _AWAY)
    # By its cause: what SQLAlchemy makes of the driver's errors where it only connects (`Database.direct`).
    return isinstance(error, (*_AWAY, PoolTimeout)) or isinstance(error.__cause__, _AWAY)


async def retry_until_available(action: Callable[[], Awaitable[T]]) -> T:
    """Calls `action` until Postgres answers, and returns what it returns. Raises whatever else it raises."""
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
        self._direct: dict[str, asyncpg.Connection] = {}
        self._turns: dict[str, asyncio.Lock] = {}

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
            if _is_away(error):
                raise StoreUnavailable(type(error).__name__) from error
            raise

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """For single statements: each commits by itself, without BEGIN and COMMIT. Raises StoreUnavailable."""
        try:
            async with self._engine.connect() as connection:
                yield await connection.execution_options(isolation_level="AUTOCOMMIT")
        except Exception as error:
            if _is_away(error):
                raise StoreUnavailable(type(error).__name__) from error
            raise

    @asynccontextmanager
    async def direct(self, lane: str = "") -> AsyncIterator[asyncpg.Connection]:
        """The driver's own connection: for the few statements whose cost counts, one caller at a time in each lane.

        It is kept beside the pool, so that statements stay prepared; after any error the next caller gets a new one.
        A statement outside of its `transaction()` commits by itself. Raises StoreUnavailable.
        """
        async with self._turns.setdefault(lane, asyncio.Lock()):
            try:
                connection = self._direct.get(lane)
                if connection is None or connection.is_closed():
                    connection = self._direct[lane] = await self._detached()
                yield connection
            except BaseException as error:
                self._drop(lane)
                if _is_away(error):
                    raise StoreUnavailable(type(error).__name__) from error
                raise

    async def _detached(self) -> asyncpg.Connection:
        """A live connection, made as the pool makes them, which the pool then forgets."""
        while True:
            pooled = await self._engine.raw_connection()
            connection: asyncpg.Connection = pooled.driver_connection
            pooled.detach()
            if not connection.is_closed():  # one that lay in the pool when Postgres restarted
                return connection

    def _drop(self, lane: str) -> None:
        if (dropped := self._direct.pop(lane, None)) is not None:
            dropped.terminate()

    async def ping(self) -> None:
        """Raises StoreUnavailable where Postgres does not answer."""
        async with self.autocommit() as connection:
            await connection.execute(text("SELECT 1"))

    async def close(self) -> None:
        while self._direct:
            _, connection = self._direct.popitem()
            with suppress(Exception):
                await connection.close(timeout=CONNECT_SECONDS)
        await self._engine.dispose()
