"""Service accounts: programs that work in a project, and own keys."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.database import Database
from app.store.paging import Page, read_page
from app.store.tables import service_accounts

_EXISTS = service_accounts.c.deleted_at.is_(None)
# In the order of `api_keys.mark_used`.
_REVOKE_KEYS = text(
    """
    WITH owned AS MATERIALIZED (
        SELECT id FROM api_keys WHERE service_account = :account ORDER BY id FOR NO KEY UPDATE
    )
    UPDATE api_keys k SET revoked_at = coalesce(k.revoked_at, now()) FROM owned o WHERE k.id = o.id
    """
)


@dataclass(frozen=True, slots=True)
class AccountRow:
    """One service account, as Postgres has it."""

    id: str
    project: str
    name: str
    role: str
    created_at: datetime
    deleted_at: datetime | None


def _row(row: Row[Any]) -> AccountRow:
    return AccountRow(**row._mapping)


async def create(connection: AsyncConnection, account_id: str, project: str, name: str, role: str) -> AccountRow:
    values = {"id": account_id, "project": project, "name": name, "role": role, "created_at": func.now()}
    return _row((await connection.execute(insert(service_accounts).values(values).returning(service_accounts))).one())


async def count(connection: AsyncConnection, project: str) -> int:
    """How many service accounts the project has."""
    statement = select(func.count()).where(service_accounts.c.project == project, _EXISTS)
    return (await connection.execute(statement)).scalar_one()


async def get(connection: AsyncConnection, project: str, account_id: str) -> AccountRow | None:
    """Returns an account of that project that was not deleted."""
    statement = select(service_accounts).where(
        service_accounts.c.id == account_id, service_accounts.c.project == project, _EXISTS
    )
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _row(row)


async def find(db: Database, ids: Collection[str]) -> dict[str, AccountRow]:
    """The accounts with these ids, deleted ones included."""
    if not ids:
        return {}
    statement = select(service_accounts).where(service_accounts.c.id.in_(ids))
    return {row.id: _row(row) for row in await db.execute(statement)}


async def find_page(db: Database, project: str, page: Page) -> tuple[list[AccountRow], bool] | None:
    """A page of the project's accounts, and whether there are more; None: the cursor names none of them."""
    keys = (service_accounts.c.created_at, service_accounts.c.id)
    owned = [service_accounts.c.project == project]
    return await read_page(db, select(service_accounts).where(_EXISTS), keys, page, _row, owned)


async def change(connection: AsyncConnection, account_id: str, name: str, role: str) -> AccountRow:
    """The account exists."""
    statement = update(service_accounts).where(service_accounts.c.id == account_id).values(name=name, role=role)
    return _row((await connection.execute(statement.returning(service_accounts))).one())


async def delete(connection: AsyncConnection, account_id: str) -> None:
    """Deletes the account, and revokes its keys."""
    statement = update(service_accounts).where(service_accounts.c.id == account_id).values(deleted_at=func.now())
    await connection.execute(statement)
    await connection.execute(_REVOKE_KEYS, {"account": account_id})
