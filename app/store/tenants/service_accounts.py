"""Service accounts, as OpenAI's clients know them: the keys of a project that carry the same account's id."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Row, Text, func, select, text
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.paging import Page, read_page
from app.store.tables import api_keys

_NAMES = func.array_agg(aggregate_order_by(api_keys.c.name, api_keys.c.created_at, api_keys.c.id), type_=ARRAY(Text))
_ACCOUNTS = (
    select(
        api_keys.c.service_account.label("id"),
        api_keys.c.project,
        func.min(api_keys.c.created_at).label("created_at"),
        _NAMES[1].label("name"),
    )
    .where(api_keys.c.service_account.is_not(None), api_keys.c.revoked_at.is_(None))
    .group_by(api_keys.c.service_account, api_keys.c.project)
    .subquery()
)
# In the order of `api_keys.mark_used`.
_CHANGE = """
    WITH owned AS MATERIALIZED (
        SELECT id FROM api_keys WHERE service_account = :account ORDER BY id FOR NO KEY UPDATE
    )
    UPDATE api_keys k SET {} FROM owned o WHERE k.id = o.id
"""
_RENAME = text(_CHANGE.format("name = :name"))
_REVOKE = text(_CHANGE.format("revoked_at = coalesce(k.revoked_at, now())"))


@dataclass(frozen=True, slots=True)
class AccountRow:
    """One service account: the name of its oldest key, and when that was made."""

    id: str
    project: str
    name: str
    created_at: datetime


def _row(row: Row[Any]) -> AccountRow:
    return AccountRow(**row._mapping)


async def get(connection: AsyncConnection, project: str, account_id: str) -> AccountRow | None:
    """Returns an account of that project which has a key that was not revoked."""
    statement = select(_ACCOUNTS).where(_ACCOUNTS.c.id == account_id, _ACCOUNTS.c.project == project)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _row(row)


async def find_page(db: Database, project: str, page: Page) -> tuple[list[AccountRow], bool] | None:
    """A page of the project's accounts, and whether there are more; None: the cursor names none of them."""
    keys = (_ACCOUNTS.c.created_at, _ACCOUNTS.c.id)
    return await read_page(db, select(_ACCOUNTS), keys, page, _row, [_ACCOUNTS.c.project == project])


async def rename(connection: AsyncConnection, account_id: str, name: str) -> None:
    """Renames its keys."""
    await connection.execute(_RENAME, {"account": account_id, "name": name})


async def revoke(connection: AsyncConnection, account_id: str) -> None:
    """Revokes its keys."""
    await connection.execute(_REVOKE, {"account": account_id})
