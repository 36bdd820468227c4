"""Service accounts, as OpenAI's clients know them: the keys of a project that carry the same account's id."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database, one
from app.store.paging import Listing, Page

_ACCOUNTS = """
    SELECT service_account AS id, project, min(created_at) AS created_at,
        (array_agg(name ORDER BY created_at, id))[1] AS name
    FROM api_keys WHERE project = :project AND service_account IS NOT NULL AND revoked_at IS NULL
    GROUP BY service_account, project
"""
_GET = text(f"SELECT * FROM ({_ACCOUNTS}) a WHERE id = :id")
_LIST = Listing(_ACCOUNTS)
# In the order of `api_keys.mark_used`.
_CHANGE = text(
    """
    WITH owned AS MATERIALIZED (
        SELECT id FROM api_keys WHERE service_account = :account ORDER BY id FOR NO KEY UPDATE
    )
    UPDATE api_keys k SET name = coalesce(:name, k.name),
        revoked_at = coalesce(k.revoked_at, CASE WHEN :revokes THEN now() END)
    FROM owned o WHERE k.id = o.id
    """
)


@dataclass(frozen=True, slots=True)
class AccountRow:
    """One service account: the name of its oldest key, and when that was made."""

    id: str
    project: str
    name: str
    created_at: datetime


async def get(connection: AsyncConnection, project: str, account_id: str) -> AccountRow | None:
    """Returns an account of that project which has a key that was not revoked."""
    return await one(AccountRow, connection, _GET, {"id": account_id, "project": project})


async def find_page(db: Database, project: str, page: Page) -> tuple[list[AccountRow], bool]:
    """A page of the project's accounts, and whether there are more."""
    return await _LIST.read(db, page, AccountRow, {"project": project})


async def change(
    connection: AsyncConnection, account_id: str, name: str | None = None, *, revokes: bool = False
) -> None:
    """Renames its keys, or revokes them."""
    await connection.execute(_CHANGE, {"account": account_id, "name": name, "revokes": revokes})
