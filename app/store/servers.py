"""The Postgres servers that DATABASE_URL names, and connecting to the one that takes writes.

Several hosts are written as libpq does: `postgresql://user:password@a:5432,b:5432/name`. asyncpg tries them in turn,
too, but within one time limit: a host that is switched off answers nothing and would use all of it.
"""

from __future__ import annotations

import asyncpg

from config.urls import split_hosts

CONNECT_SECONDS = 5
"""How long one server may take to let a connection in."""
STATEMENT_SECONDS = 60


class Servers:
    """Connects to the first server that is not a standby; begins with the one that was it the last time."""

    def __init__(self, url: str) -> None:
        self._urls = _one_for_each_host(url)
        self._last = 0
        """The index of the server that was connected to last."""

    async def connect(self) -> asyncpg.Connection:
        """Raises what the last server said if none takes writes."""
        count, first = len(self._urls), self._last
        for index in (*range(first, count), *range(first)):
            try:
                connection = await _connect(self._urls[index])
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                refusal: Exception = error
            else:
                self._last = index
                return connection
        raise refusal


async def _connect(url: str) -> asyncpg.Connection:
    """If the server does not answer in time, that is another trouble than a slow statement."""
    try:
        return await asyncpg.connect(
            url, timeout=CONNECT_SECONDS, command_timeout=STATEMENT_SECONDS, target_session_attrs="read-write"
        )
    except TimeoutError as error:
        raise ConnectionError("Postgres does not answer") from error


def _one_for_each_host(url: str) -> list[str]:
    before, hosts, after = split_hosts(url)
    return [f"{before}{host}{after}" for host in hosts]
