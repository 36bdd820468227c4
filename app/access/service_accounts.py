"""Service accounts of projects, and the keys that belong to them."""

from __future__ import annotations

from collections.abc import Collection

from app.access.caller import PROJECT_SCOPES, Scope
from app.access.changes import AdministrationError, AuditType, Change, Changes, NothingThere, new_id
from app.access.new_keys import CreatedKey, add_key, check_name, lock_active_project
from app.store.tenants import service_accounts
from app.store.tenants.service_accounts import AccountRow

MAX_ACCOUNTS = 1000
"""Service accounts of one project."""
MEMBER, NO_ROLE = "member", "none"


class ServiceAccounts:
    """What operators do with service accounts. Every method raises AdministrationError and StoreUnavailable."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def create(
        self, project: str, name: str, lifetime_seconds: float | None, *, with_key: bool
    ) -> tuple[AccountRow, CreatedKey | None]:
        """Makes an account that is a member, with a key for everything; or one without role and key."""
        check_name(name)
        async with self._changes.begin() as change:
            await lock_active_project(change, project)
            if await service_accounts.count(change.connection, project) >= MAX_ACCOUNTS:
                raise AdministrationError(f"the project has {MAX_ACCOUNTS} service accounts already, the limit")
            role, account_id = MEMBER if with_key else NO_ROLE, new_id("svc_acct")
            row = await service_accounts.create(change.connection, account_id, project, name, role)
            await change.note(AuditType.ACCOUNT_CREATED, account_id, project, {"data": {"role": role}})
            if not with_key:
                return row, None
            return row, await add_key(change, project, name, PROJECT_SCOPES, lifetime_seconds, account_id)

    async def get(self, project: str, account_id: str) -> AccountRow:
        async with self._changes.db.autocommit() as connection:
            row = await service_accounts.get(connection, project, account_id)
        return _existing(row, account_id)

    async def change(self, project: str, account_id: str, name: str | None, role: str | None) -> AccountRow:
        """None leaves either as it is."""
        if name is not None:
            check_name(name)
        async with self._changes.begin() as change:
            old = await self._locked(change, project, account_id)
            row = await service_accounts.change(change.connection, account_id, name or old.name, role or old.role)
            asked = {"name": name, "role": role}
            sent = {field: value for field, value in asked.items() if value is not None}
            await change.note(AuditType.ACCOUNT_UPDATED, account_id, project, {"changes_requested": sent})
        return row

    async def delete(self, project: str, account_id: str) -> None:
        """Its keys are refused from now on, and what they have open ends."""
        async with self._changes.begin() as change:
            await self._locked(change, project, account_id)
            await service_accounts.delete(change.connection, account_id)
            await change.note(AuditType.ACCOUNT_DELETED, account_id, project)

    async def create_key(
        self, project: str, account_id: str, name: str | None, scopes: Collection[Scope], lifetime_seconds: float | None
    ) -> CreatedKey:
        """Without a name the key has that of the account."""
        async with self._changes.begin() as change:
            account = await self._locked(change, project, account_id)
            if account.role == NO_ROLE:
                message = f"the service account '{account_id}' has no role; make it a member first"
                raise AdministrationError(message, "service_account_id")
            return await add_key(change, project, name or account.name, scopes, lifetime_seconds, account_id)

    async def _locked(self, change: Change, project: str, account_id: str) -> AccountRow:
        """The project's lock keeps the account as it is, too."""
        await lock_active_project(change, project)
        return _existing(await service_accounts.get(change.connection, project, account_id), account_id)


def _existing(row: AccountRow | None, account_id: str) -> AccountRow:
    if row is None:
        raise NothingThere(f"there is no service account '{account_id}' in this project", "service_account_id")
    return row
