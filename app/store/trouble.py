"""What an error of Postgres means for the caller: one table, by SQLSTATE.

The codes are in https://www.postgresql.org/docs/current/errcodes-appendix.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout


class Trouble(Enum):
    """The kind of an error, and whether it helps to repeat the statement."""

    AWAY = "away"
    """Postgres cannot work for anybody now: repeat until it can."""
    REFUSED = "refused"
    """Postgres does not let this process in, or DATABASE_URL cannot be used: repeat, for a password may just be
    changing. A process that starts ends instead (app/local/service_check.py)."""
    MISMATCH = "mismatch"
    """Postgres works, but a right or a column that this code needs is missing: no outage, but an error of ours or of
    whoever has not run `longhaul migrate`. As BUSY, and logged as an error."""
    BUSY = "busy"
    """Postgres works, and ended this statement: repeat it for a bounded time."""
    LOCKED = "locked"
    """Another transaction holds a lock that this statement needs: as BUSY."""
    TOO_LONG = "too long"
    """Postgres works, and ended this statement because it took too long: as BUSY."""
    NO_CONNECTION = "no connection"
    """All connections of this process are in use, whether Postgres works or not: repeat until one is free."""
    BAD_DATA = "bad data"
    """Postgres refuses these values: repeating is useless. Only the item that holds them is affected."""
    BUG = "bug"
    """Any other error: the statement or the schema is wrong."""


_BY_SQLSTATE = {
    "08": Trouble.AWAY,  # the connection broke
    "22": Trouble.BAD_DATA,
    "23": Trouble.BAD_DATA,
    "25006": Trouble.AWAY,  # a standby, before a failover has reached it
    "25P03": Trouble.AWAY,  # the server closed a connection that was idle in a transaction
    "28": Trouble.REFUSED,  # the password is wrong, or being changed
    "3D000": Trouble.REFUSED,  # there is no such database, or it is being restored
    "40": Trouble.BUSY,  # a deadlock, or a conflict of transactions: it was rolled back
    "42501": Trouble.MISMATCH,  # the role lacks a right
    "42703": Trouble.MISMATCH,  # a column is missing
    "42P01": Trouble.AWAY,  # a table is missing: before the first `longhaul migrate`
    "53": Trouble.BUSY,  # out of memory
    "53100": Trouble.AWAY,  # the disk is full
    "53300": Trouble.AWAY,  # too many connections
    "55P03": Trouble.LOCKED,  # a lock was not free, or not in time
    "57014": Trouble.TOO_LONG,  # the statement was cancelled, or ran into `statement_timeout`
    "57P": Trouble.AWAY,  # the server stops, starts, or has crashed
    "58": Trouble.AWAY,  # the server's disk or kernel reports an error
}
"""By code, or by the first characters of one; the longest entry that fits decides."""


def by_sqlstate(code: str) -> Trouble:
    beginnings = (code[:length] for length in range(len(code), 1, -1))
    return next((_BY_SQLSTATE[each] for each in beginnings if each in _BY_SQLSTATE), Trouble.BUG)


def trouble_of(error: BaseException) -> Trouble | None:
    """Returns None for an error that does not come from Postgres, its driver or the pool of connections."""
    if isinstance(error, PoolTimeout):
        return Trouble.NO_CONNECTION
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return Trouble.AWAY
    for cause in _causes(error):
        if (trouble := _of_driver(cause)) is not None:
            return trouble
    return Trouble.BUG if isinstance(error, DBAPIError) else None


def reason(error: BaseException) -> str:
    """What the driver, or else SQLAlchemy, calls the error; of REFUSED and MISMATCH also its first line, which has no
    value of a statement."""
    of_driver = next((each for each in _causes(error) if _of_driver(each) is not None), error)
    name = type(of_driver).__name__
    says_more = trouble_of(error) in (Trouble.REFUSED, Trouble.MISMATCH)
    return f"{name}: {str(of_driver).partition(chr(10))[0]}" if says_more else name


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and the driver's error that SQLAlchemy wrapped."""
    yield error
    if isinstance(error, DBAPIError) and error.orig is not None:
        yield error.orig
        error = error.orig
    if error.__cause__ is not None:
        yield error.__cause__


def _of_driver(error: BaseException) -> Trouble | None:
    """The trouble that an error of asyncpg, or of a socket, means."""
    match error:
        case asyncpg.PostgresError() if error.sqlstate:
            return by_sqlstate(error.sqlstate)
        case asyncpg.ClientConfigurationError():
            return Trouble.REFUSED
        case asyncpg.InterfaceError() if isinstance(error, ValueError):  # a value that the driver cannot send
            return Trouble.BAD_DATA
        case asyncpg.InterfaceError() | asyncpg.InternalClientError() | asyncpg.PostgresError():
            return Trouble.AWAY  # the connection was closed, and the driver has not noticed yet
        case TimeoutError():  # the driver waited for a statement; of a connect, `servers.py` makes a ConnectionError
            return Trouble.TOO_LONG
        case OSError():
            return Trouble.AWAY
        case _:
            return None
