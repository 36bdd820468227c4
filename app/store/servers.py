"""The Postgres servers that DATABASE_URL names, and connecting to the one that takes writes.

Several hosts are written as libpq does: `postgresql://user:password@a:5432,b:5432/name`. asyncpg tries them in turn,
too, but within one time limit: a host that is switched off answers nothing and would use all of it.
"""

from __future__ import annotations

import ssl

import asyncpg

from config.urls import postgres_servers

CONNECT_SECONDS = 5
"""How long one server may take to let a connection in, unless DATABASE_URL has a connect_timeout."""
STATEMENT_SECONDS = 60
"""How long the driver waits for a statement before it cancels it; of `migrate` it waits without an end."""
STATEMENTS = 100
"""Prepared statements that one connection keeps."""
OLDEST_POSTGRES = (15,)
"""The oldest version that is still maintained, and that the tests were run with."""


class Servers:
    """Connects to the first server that is not a standby; begins with the last known primary."""

    def __init__(
        self, url: str, statement_seconds: float | None = None, driver_seconds: float | None = STATEMENT_SECONDS
    ) -> None:
        """`statement_seconds` is the `statement_timeout` of the connections; None: that of the server or the role.
        The driver cancels a statement after `driver_seconds`; None: never.

        A session that keeps nothing from one transaction to the next has none: the driver cancels its statements.
        """
        self._servers = postgres_servers(url)
        self._statement_seconds = None if self._servers.keeps_nothing else statement_seconds
        self._driver_seconds = driver_seconds
        self._ssl = ssl.create_default_context() if self._servers.trusts_system else None
        self.keeps_nothing = self._servers.keeps_nothing
        self._last = 0
        """The index of the server that was connected to last."""

    async def connect(self) -> asyncpg.Connection:
        """Raises what the last server said if none takes writes."""
        count, first = len(self._servers.urls), self._last
        for index in (*range(first, count), *range(first)):
            try:
                connection = await self._connect(self._servers.urls[index])
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                refusal: Exception = error
            else:
                self._last = index
                return connection
        raise refusal

    async def _connect(self, url: str) -> asyncpg.Connection:
        """If the server does not answer in time, that is another trouble than a slow statement."""
        try:
            connection = await asyncpg.connect(
                url,
                ssl=self._ssl,
                timeout=self._servers.connect_seconds or CONNECT_SECONDS,
                command_timeout=self._driver_seconds,
                target_session_attrs="read-write",
                statement_cache_size=0 if self.keeps_nothing else STATEMENTS,
            )
            await self._limit_statements(connection)
        except TimeoutError as error:
            raise ConnectionError("Postgres does not answer") from error
        return connection

    async def _limit_statements(self, connection: asyncpg.Connection) -> None:
        """Sets `statement_timeout`, which PgBouncer refuses among the parameters of a connection.

        Closes the connection if that fails, or if its caller leaves meanwhile: nobody else knows it yet.
        """
        if self._statement_seconds is None:
            return
        try:
            await connection.execute(f"SET statement_timeout = '{1000 * self._statement_seconds:.0f}ms'")
        except BaseException:
            connection.terminate()
            raise


async def version(url: str) -> tuple[int, ...]:
    """The version of the server that takes writes."""
    connection = await Servers(url).connect()
    found = connection.get_server_version()
    await connection.close()
    return (found.major, found.micro)  # the driver says 15.0.18 of 15.18
