"""Making and ending keys and projects. Every process learns of a change by the doorbell, or a few seconds later."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from app.access.caller import Scope
from app.access.changes import AdministrationError, AuditType, Change, Changes, NothingThere
from app.access.new_keys import (
    CreatedKey,
    add_key,
    check_given,
    check_key_count,
    check_name,
    check_scopes,
    insert_key,
    lock_active_project,
    lock_project,
)
from app.access.project_limits import put_limits
from app.ids import new_id
from app.protocol.limits import ALL_MODELS, LimitKind
from app.protocol.requests.bodies.organization import MAX_NAME_CHARS
from app.store.database import Connection
from app.store.tables import DEFAULT_PROJECT
from app.store.tenants import api_keys, projects
from app.store.tenants.api_keys import KeyRow
from app.store.tenants.projects import ALL, EVERYTHING, NOT, ProjectRow
from config.settings import LimitName

MAX_PROJECTS = 10_000
"""Archived ones included."""
DEFAULT_TIER = "default"
"""The best service tier of a new project: `priority` is granted, not asked for."""
DEFAULT_OVERLAP_SECONDS = 86400.0


class Administration:
    """The operators' changes of projects and keys. Every method raises AdministrationError and StoreUnavailable.

    The models of requests have checked what is a number, a tier or a list's length.
    """

    def __init__(self, changes: Changes, new_project_limits: Mapping[LimitName, int]) -> None:
        self._changes = changes
        self._first_limits = {LimitKind(name): value for name, value in new_project_limits.items()}
        self.db = changes.db

    async def create_project(
        self,
        name: str,
        models: Collection[str] = EVERYTHING,
        tool_servers: Collection[str] = EVERYTHING,
        top_tier: str = DEFAULT_TIER,
        weight: float = 1.0,
    ) -> ProjectRow:
        """Makes a project. `models` and `tool_servers` say what it may use, as in `ProjectRow`.

        `top_tier` is the best service tier that its responses get, `weight` its share of every queue. It begins with
        the limits of new projects.
        """
        check_name(name)
        _check_permitted(models, tool_servers)
        async with self._changes.begin() as change:
            if await projects.count(change.connection) >= MAX_PROJECTS:
                raise AdministrationError(f"there are {MAX_PROJECTS} projects already, the limit")
            row = await projects.create(change.connection, new_id("proj"), name, models, tool_servers, top_tier, weight)
            await change.note(AuditType.PROJECT_CREATED, row.id, row.id, {"data": {"name": name, "title": name}})
            if self._first_limits:
                await put_limits(change, row.id, ALL_MODELS, self._first_limits)
        return row

    async def project(self, project_id: str) -> ProjectRow:
        found = (await projects.find(self.db, [project_id])).get(project_id)
        if found is None:
            raise NothingThere(f"there is no project '{project_id}'", "project_id")
        return found

    async def change_project(
        self,
        project_id: str,
        *,
        name: str | None = None,
        models: Collection[str] | None = None,
        tool_servers: Collection[str] | None = None,
        top_tier: str | None = None,
        weight: float | None = None,
        conversation_days: int | None = None,
    ) -> ProjectRow:
        """Sets what an active project is called, and what its next requests may use, as in `create_project`.

        None leaves each as it is. Conversations that have not changed for `conversation_days` are deleted; 0: none is.
        """
        lists = {"models": models, "tool_servers": tool_servers}
        others = {"name": name, "top_tier": top_tier, "weight": weight, "conversation_days": conversation_days}
        values: dict[str, Any] = {field: sorted(names) for field, names in lists.items() if names is not None}
        _check_permitted(*values.values())
        values |= {field: value for field, value in others.items() if value is not None}
        if not values:
            return await self.project(project_id)
        if name is not None:
            check_name(name)
        asked = {"title" if field == "name" else field: value for field, value in values.items()}
        if conversation_days == 0:
            values["conversation_days"] = None
        async with self._changes.begin() as change:
            before = await lock_active_project(change, project_id)
            row = await projects.change(change.connection, replace(before, **values))
            await _note_update(change, project_id, asked)
        return row

    async def archive_project(self, project_id: str) -> ProjectRow:
        """Archives a project: its keys are refused from now on. Its background responses run to their end."""
        if project_id == DEFAULT_PROJECT:
            raise AdministrationError("the project 'default' cannot be archived; revoke its keys", "project_id")
        async with self._changes.begin() as change:
            before = await lock_project(change, project_id)
            row = await projects.archive(change.connection, project_id)
            if before.archived_at is None:
                await change.note(AuditType.PROJECT_ARCHIVED, project_id, project_id)
        return row

    async def erase_project(self, project_id: str, after_days: int = 0) -> ProjectRow:
        """Archives the project, and has everything of it erased after so many days (erasure.py).

        The project 'default' is not archived: it loses what was made before then, and keeps its keys and limits.
        """
        async with self._changes.begin() as change:
            before = await lock_project(change, project_id)
            if project_id != DEFAULT_PROJECT and before.archived_at is None:
                await projects.archive(change.connection, project_id)
                await change.note(AuditType.PROJECT_ARCHIVED, project_id, project_id)
            row = await projects.erase_after(change.connection, project_id, after_days)
            await _note_update(change, project_id, {"erase_after_days": after_days})
        return row

    async def create_key(
        self, project: str | None, name: str, scopes: Collection[Scope], lifetime_seconds: float | None = None
    ) -> CreatedKey:
        """Makes a key of a project, or of the operators (None). Without a lifetime it does not expire."""
        async with self._changes.begin() as change:
            if project is not None:
                await lock_active_project(change, project)
            return await add_key(change, project, name, scopes, lifetime_seconds)

    async def key(self, project: str | None, key_id: str) -> KeyRow:
        """Returns a key of the project, or of the operators (None), that was not revoked."""
        async with self.db.autocommit() as connection:
            return await _key_of(connection, project, key_id)

    async def change_key(
        self, project: str, key_id: str, scopes: Collection[Scope] | None, lifetime_seconds: float | None
    ) -> KeyRow:
        """Sets a key's scopes, and how long it lives from now on; None leaves either as it is."""
        if scopes is not None:
            check_scopes(project, scopes)
        names = None if scopes is None else sorted(scope.value for scope in scopes)
        async with self._changes.begin() as change:
            await lock_active_project(change, project)
            if (await _key_of(change.connection, project, key_id)).state != "works":
                raise AdministrationError(f"the key '{key_id}' has expired; create a new one", "key_id")
            if lifetime_seconds is not None:
                await check_given(change, (), lifetime_seconds)
            await api_keys.change(change.connection, key_id, names, lifetime_seconds)
            asked = {"scopes": names, "expires_in_seconds": lifetime_seconds}
            sent = {name: value for name, value in asked.items() if value is not None}
            await change.note(AuditType.KEY_UPDATED, key_id, project, {"changes_requested": sent})
            row = await api_keys.get(change.connection, key_id)
        assert row is not None
        return row

    async def revoke_key(self, key_id: str) -> KeyRow:
        """The key is refused from now on, and what it has open ends."""
        async with self._changes.begin() as change:
            before = await _existing_key(change, key_id)
            await api_keys.revoke(change.connection, key_id)
            if before.revoked_at is None:
                await change.note(AuditType.KEY_DELETED, key_id, before.project)
            return await _existing_key(change, key_id)

    async def rotate_key(self, key_id: str, overlap_seconds: float = DEFAULT_OVERLAP_SECONDS) -> CreatedKey:
        """Makes a key like this one; the old one works for `overlap_seconds` more, or until it expires.

        The new key has the lifetime that the old one had from its beginning. Where both together would be one key too
        many, only a rotation without an overlap is possible.
        """
        async with self._changes.begin() as change:
            if (project := (await _existing_key(change, key_id)).project) is not None:
                await lock_project(change, project)  # So nobody deletes its service account meanwhile.
            old = await _existing_key(change, key_id)
            if old.state != "works":
                raise AdministrationError(f"the key '{key_id}' works no longer; create a new one")
            await api_keys.end_after(change.connection, key_id, overlap_seconds)
            await check_given(change, old.scopes, old.lifetime_seconds)
            await check_key_count(change, project)
            requested = {"changes_requested": {"expires_in_seconds": overlap_seconds}}
            await change.note(AuditType.KEY_UPDATED, key_id, old.project, requested)
            return await insert_key(
                change, old.project, old.name, old.scopes, old.lifetime_seconds, old.service_account
            )

    async def set_limits(self, project: str, model: str, values: Mapping[LimitKind, int | None]) -> None:
        """Sets what the project may use of a model, or of all models together; None removes a limit.

        Holds within a second, as keys do.
        """
        async with self._changes.begin() as change:
            await lock_active_project(change, project)
            await put_limits(change, project, model, values)


def _check_permitted(*lists: Collection[str]) -> None:
    for names in lists:
        if not all(1 <= len(name.removeprefix(NOT)) <= MAX_NAME_CHARS and name.isprintable() for name in names):
            raise AdministrationError(f"a permitted name has 1 to {MAX_NAME_CHARS} printable characters")
        if ALL not in names and (denied := sorted(name for name in names if name.startswith(NOT))):
            raise AdministrationError(f"'{denied[0]}' takes a name from '{ALL}', which is not permitted")


async def _note_update(change: Change, project_id: str, requested: Mapping[str, object]) -> None:
    await change.note(AuditType.PROJECT_UPDATED, project_id, project_id, {"changes_requested": requested})


async def _existing_key(change: Change, key_id: str) -> KeyRow:
    row = await api_keys.get(change.connection, key_id)
    if row is None:
        raise NothingThere(f"there is no key '{key_id}'", "key_id")
    return row


async def _key_of(connection: Connection, project: str | None, key_id: str) -> KeyRow:
    """Returns a key of the project, or of the operators (None), that was not revoked. Raises NothingThere."""
    row = await api_keys.get(connection, key_id)
    if row is None or row.project != project or row.revoked_at is not None:
        raise NothingThere(f"there is no key '{key_id}'", "key_id")
    return row
