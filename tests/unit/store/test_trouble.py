"""What each error of Postgres means: by its SQLSTATE, however SQLAlchemy wraps it."""

from __future__ import annotations

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.store import database
from app.store.database import Patience, StoreBusy, StoreUnavailable
from app.store.trouble import Trouble, by_sqlstate, trouble_of

TABLE = {
    Trouble.AWAY: ("08000 08001 08003 08004 08006 25006 25P03 42P01 53100 53300 57P01 57P02 57P03 57P05 58000 58030"),
    Trouble.REFUSED: "28000 28P01 3D000",
    Trouble.MISMATCH: "42501 42703",
    Trouble.BUSY: "40000 40001 40003 40P01 53000 53200 53400",
    Trouble.LOCKED: "55P03",
    Trouble.TOO_LONG: "57014",
    Trouble.BAD_DATA: "22000 22001 22003 22021 22P02 22P05 23502 23503 23505 23514",
    Trouble.BUG: "0A000 25001 25P02 42601 42883 54000 55000 55006 57000 P0001 XX000",
}


@pytest.mark.parametrize(
    ("code", "trouble"), [(code, trouble) for trouble, codes in TABLE.items() for code in codes.split()]
)
def test_each_sqlstate_has_its_trouble(code: str, trouble: Trouble) -> None:
    assert by_sqlstate(code) is trouble


def wrapped(error: Exception) -> DBAPIError:
    """As SQLAlchemy's dialect for asyncpg wraps an error of the driver."""
    translated = Exception("translated")
    translated.__cause__ = error
    return DBAPIError("SELECT", None, translated)


class Unsendable(asyncpg.InterfaceError, ValueError):
    """As asyncpg's error for a value that it cannot encode, which it does not export."""


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (asyncpg.QueryCanceledError("cancelled"), Trouble.TOO_LONG),
        (asyncpg.DiskFullError("full"), Trouble.AWAY),
        (asyncpg.ReadOnlySQLTransactionError("standby"), Trouble.AWAY),
        (asyncpg.UniqueViolationError("twice"), Trouble.BAD_DATA),
        (Unsendable("a value that cannot be sent"), Trouble.BAD_DATA),
        (asyncpg.InterfaceError("connection is closed"), Trouble.AWAY),
        (asyncpg.ClientConfigurationError("an option"), Trouble.REFUSED),
        (asyncpg.InternalClientError("closed meanwhile"), Trouble.AWAY),
        (TimeoutError(), Trouble.TOO_LONG),
        (ConnectionResetError(), Trouble.AWAY),
        (asyncpg.UndefinedFunctionError("no function"), Trouble.BUG),
    ],
)
def test_an_error_of_the_driver_means_the_same_bare_and_wrapped(error: Exception, trouble: Trouble) -> None:
    assert trouble_of(error) is trouble
    assert trouble_of(wrapped(error)) is trouble


def test_errors_of_the_pool_and_errors_of_others() -> None:
    assert trouble_of(PoolTimeout()) is Trouble.NO_CONNECTION
    assert trouble_of(InvalidRequestError("a bug")) is None
    assert trouble_of(ValueError("bad")) is None
    assert trouble_of(DBAPIError("SELECT", None, Exception("?"), connection_invalidated=True)) is Trouble.AWAY


async def test_patience_ends_only_with_a_statement_that_postgres_ends_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(database, "BUSY_SECONDS", -1.0)
    patience = Patience()
    for _ in range(3):
        await patience.wait(StoreUnavailable("away"))
        await patience.wait(StoreBusy("cancelled"))
    with pytest.raises(StoreBusy):
        await patience.wait(StoreBusy("cancelled"))
