"""Service accounts, as OpenAI's clients know them: a key with a name, and further keys for the same."""

from __future__ import annotations

from collections.abc import Collection

from app.access.caller import PROJECT_SCOPES, Scope
from app.access.changes import AuditType, Change, Changes, NothingThere
from app.access.new_keys import CreatedKey, add_key, check_name, lock_active_project
from app.ids import new_id
from app.store.tenants import service_accounts
from app.store.tenants.service_accounts import AccountRow


class ServiceAccounts:
    """The operators' changes of service accounts. Every method raises AdministrationError and StoreUnavailable."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def create(self, project: str, name: str, lifetime_seconds: float | None) -> tuple[AccountRow, CreatedKey]:
        """Makes a key that allows everything that a project's key may do."""
        async with self._changes.begin() as change:
            await lock_active_project(change, project)
            account_id = new_id("svc_acct")
            await change.note(AuditType.ACCOUNT_CREATED, account_id, project, {"data": {"role": "member"}})
            made = await add_key(change, project, name, PROJECT_SCOPES, lifetime_seconds, account_id)
            return AccountRow(account_id, project, name, made.row.created_at), made

    async def get(self, project: str, account_id: str) -> AccountRow:
        async with self._changes.db.autocommit() as connection:
            return _existing(await service_accounts.get(connection, project, account_id), account_id)

    async def rename(self, project: str, account_id: str, name: str | None) -> AccountRow:
        """None leaves the name as it is."""
        if name is None:
            return await self.get(project, account_id)
        check_name(name)
        async with self._changes.begin() as change:
            await self._locked(change, project, account_id)
            await service_accounts.change(change.connection, account_id, name)
            await change.note(AuditType.ACCOUNT_UPDATED, account_id, project, {"changes_requested": {"name": name}})
        return await self.get(project, account_id)

    async def delete(self, project: str, account_id: str) -> None:
        """Ends the account's keys: they are refused from now on, and their open requests end."""
        async with self._changes.begin() as change:
            await self._locked(change, project, account_id)
            await service_accounts.change(change.connection, account_id, revokes=True)
            await change.note(AuditType.ACCOUNT_DELETED, account_id, project)

    async def create_key(
        self, project: str, account_id: str, name: str | None, scopes: Collection[Scope], lifetime_seconds: float | None
    ) -> CreatedKey:
        """Without a name the key has that of the account."""
        async with self._changes.begin() as change:
            account = await self._locked(change, project, account_id)
            return await add_key(change, project, name or account.name, scopes, lifetime_seconds, account_id)

    async def _locked(self, change: Change, project: str, account_id: str) -> AccountRow:
        """The project's lock keeps the account as it is, too."""
        await lock_active_project(change, project)
        return _existing(await service_accounts.get(change.connection, project, account_id), account_id)


def _existing(row: AccountRow | None, account_id: str) -> AccountRow:
    if row is None:
        raise NothingThere(f"there is no service account '{account_id}' in this project", "service_account_id")
    return row
