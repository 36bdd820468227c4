"""Making and ending keys and projects. Every process learns of a change by the doorbell, or a few seconds later."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from app.access.caller import OPERATOR_SCOPES, PROJECT_SCOPES, Scope
from app.access.directory import DOORBELL
from app.access.secret import hash_of, new_secret, shown
from app.protocol.limits import ALL_MODELS, TIERS, LimitKind, LimitState
from app.store import api_keys, limits, projects
from app.store.api_keys import KeyRow, NewKey
from app.store.database import Database
from app.store.limits import LimitRow
from app.store.projects import ProjectRow
from app.store.tables import DEFAULT_PROJECT
from app.streaming.pubsub import PubSub, PubSubUnavailable

MAX_NAME_CHARS = 200
MAX_PERMITTED = 1000
"""Models, or MCP servers, that one project may be permitted by name."""
MAX_KEYS = 1000
"""Working keys of one project, or of the operators."""
MAX_LIMITS = 200
"""Limits of one project."""
MAX_LIMIT = 2**53
"""The largest value of a limit: beyond it, a double counts no longer by one."""
MIN_SECONDS = 1.0
MAX_SECONDS = 10 * 366 * 86400.0
"""The longest lifetime of a key that expires."""
DEFAULT_OVERLAP_SECONDS = 86400.0
DEFAULT_TIER = "default"
"""The best service tier of a new project: `priority` is granted, not asked for."""


class AdministrationError(Exception):
    """What was asked for cannot be. The message is one line for the operator."""


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key, with the secret that nobody can ever read again."""

    row: KeyRow
    secret: str


class Administration:
    """What operators can do. Every method raises AdministrationError and StoreUnavailable."""

    def __init__(self, db: Database, pubsub: PubSub) -> None:
        self._db = db
        self._pubsub = pubsub

    async def create_project(
        self,
        name: str,
        models: Collection[str] | None = None,
        tool_servers: Collection[str] | None = None,
        top_tier: str = DEFAULT_TIER,
    ) -> ProjectRow:
        """Makes a project. `models` and `tool_servers` are all that it may use; None permits everything.

        `top_tier` is the best service tier that its responses get.
        """
        _check_name(name)
        _check_permitted(models, tool_servers)
        _check_tier(top_tier)
        return await projects.create(self._db, _new_id("proj"), name, models, tool_servers, top_tier)

    async def list_projects(self) -> list[ProjectRow]:
        return await projects.find_all(self._db)

    async def permit(
        self,
        project_id: str,
        models: Collection[str] | None,
        tool_servers: Collection[str] | None,
        top_tier: str | None = None,
    ) -> ProjectRow:
        """Sets what the project's next requests may use; None permits everything, and leaves the tier as it is."""
        _check_permitted(models, tool_servers)
        if top_tier is not None:
            _check_tier(top_tier)
        row = await projects.permit(self._db, project_id, models, tool_servers, top_tier)
        await self._ring()
        return _existing(row, project_id)

    async def archive_project(self, project_id: str) -> ProjectRow:
        """From now on the project's keys are refused. What it has in the background runs to its end."""
        if project_id == DEFAULT_PROJECT:
            raise AdministrationError("the project 'default' cannot be archived; revoke its keys")
        row = await projects.archive(self._db, project_id)
        await self._ring()
        return _existing(row, project_id)

    async def create_key(
        self, project: str | None, name: str, scopes: Collection[Scope], lifetime_seconds: float | None = None
    ) -> CreatedKey:
        """Makes a key of a project, or of the operators (None). Without a lifetime it does not expire."""
        _check_name(name)
        _check_scopes(project, scopes)
        if lifetime_seconds is not None and not MIN_SECONDS <= lifetime_seconds <= MAX_SECONDS:
            raise AdministrationError(f"a key may live for {MIN_SECONDS:g} to {MAX_SECONDS:.0f} seconds")
        if project is not None:
            await self._check_project(project)
        if sum(_works(key) for key in await self.list_keys(project)) >= MAX_KEYS:
            raise AdministrationError(f"there are {MAX_KEYS} working keys already, the limit; revoke some first")
        secret = new_secret()
        row = await api_keys.create(self._db, _new_key(secret, project, name, scopes, lifetime_seconds))
        return CreatedKey(row, secret)

    async def list_keys(self, project: str | None) -> list[KeyRow]:
        """The keys of a project, or of the operators (None), revoked and expired ones included."""
        return await api_keys.find_of(self._db, project)

    async def list_all_keys(self) -> list[KeyRow]:
        """The keys of all projects and of the operators."""
        return await api_keys.find_all(self._db)

    async def revoke_key(self, key_id: str) -> KeyRow:
        """The key is refused from now on, and what it has open ends."""
        row = await api_keys.revoke(self._db, key_id)
        await self._ring()
        return _existing_key(row, key_id)

    async def rotate_key(self, key_id: str, overlap_seconds: float = DEFAULT_OVERLAP_SECONDS) -> CreatedKey:
        """Makes a key like this one; the old one works for `overlap_seconds` more, or until it expires.

        The new key has the lifetime that the old one had from its beginning.
        """
        if not 0 <= overlap_seconds <= MAX_SECONDS:
            raise AdministrationError(f"an overlap has 0 to {MAX_SECONDS:.0f} seconds")
        old = _existing_key(await api_keys.get(self._db, key_id), key_id)
        if not _works(old):
            raise AdministrationError(f"the key '{key_id}' works no longer; create a new one")
        lifetime = None if old.expires_at is None else (old.expires_at - old.created_at).total_seconds()
        secret, scopes = new_secret(), [Scope(name) for name in old.scopes]
        new = _new_key(secret, old.project, old.name, scopes, lifetime)
        row = await api_keys.replace(self._db, key_id, new, overlap_seconds)
        await self._ring()
        return CreatedKey(row, secret)

    async def list_limits(self, project: str | None = None) -> list[LimitRow]:
        """The limits of a project, or of all."""
        return await limits.find(self._db, project)

    async def limit_states(self, project: str) -> list[LimitState]:
        """The limits of a project with what is taken of them now."""
        return await limits.states(self._db, project)

    async def set_limit(self, project: str, kind: LimitKind, value: int, model: str = ALL_MODELS) -> None:
        """Sets what the project may use of a model, or of all models together. Holds within a second, as keys do."""
        if not 1 <= value <= MAX_LIMIT:
            raise AdministrationError(f"a limit is a number from 1 to {MAX_LIMIT}")
        if not 1 <= len(model) <= MAX_NAME_CHARS or not model.isprintable():
            raise AdministrationError(f"the name of a model has 1 to {MAX_NAME_CHARS} printable characters")
        await self._check_project(project)
        if not await limits.put(self._db, LimitRow(project, model, kind, value), MAX_LIMITS):
            raise AdministrationError(f"the project has {MAX_LIMITS} limits, the most; remove some first")
        await self._ring()

    async def remove_limit(self, project: str, kind: LimitKind, model: str = ALL_MODELS) -> None:
        """From now on the project may use as much as there is."""
        if not await limits.remove(self._db, project, model, kind):
            raise AdministrationError(f"there is no such limit of '{project}'; `longhaul limits list` shows all")
        await self._ring()

    async def _check_project(self, project_id: str) -> None:
        found = (await projects.find(self._db, [project_id])).get(project_id)
        if _existing(found, project_id).archived_at is not None:
            raise AdministrationError(f"the project '{project_id}' is archived")

    async def _ring(self) -> None:
        with contextlib.suppress(PubSubUnavailable):  # Every process looks a few seconds later.
            await self._pubsub.ring(DOORBELL)


async def create_first_key(db: Database, keep: Callable[[str], None]) -> bool:
    """Makes an admin key unless there is one that works; returns whether it did. `keep` stores the secret.

    Raises StoreUnavailable, and what `keep` raises: then there is no key. (An OSError would pass for one of Postgres.)
    """
    secret = new_secret()
    new = _new_key(secret, None, "first key", OPERATOR_SCOPES, None)
    return await api_keys.create_first(db, new, lambda: keep(secret))


def _new_key(
    secret: str, project: str | None, name: str, scopes: Collection[Scope], lifetime_seconds: float | None
) -> NewKey:
    values = [scope.value for scope in scopes]
    return NewKey(_new_id("key"), project, name, hash_of(secret), shown(secret), values, lifetime_seconds)


def _new_id(kind: str) -> str:
    """Returns an id that sorts by time."""
    return f"{kind}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"


def _works(key: KeyRow) -> bool:
    is_expired = key.remaining_seconds is not None and key.remaining_seconds <= 0
    return key.revoked_at is None and not key.is_archived and not is_expired


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise AdministrationError(f"a name has 1 to {MAX_NAME_CHARS} printable characters")


def _check_permitted(*lists: Collection[str] | None) -> None:
    for names in lists:
        if names is not None and len(names) > MAX_PERMITTED:
            raise AdministrationError(f"at most {MAX_PERMITTED} names can be permitted, but there are {len(names)}")
        if names is not None and not all(1 <= len(name) <= MAX_NAME_CHARS and name.isprintable() for name in names):
            raise AdministrationError(f"a permitted name has 1 to {MAX_NAME_CHARS} printable characters")


def _check_tier(tier: str) -> None:
    if tier not in TIERS:
        raise AdministrationError(f"a service tier is one of {', '.join(TIERS)}, not '{tier}'")


def _check_scopes(project: str | None, scopes: Collection[Scope]) -> None:
    allowed = OPERATOR_SCOPES if project is None else PROJECT_SCOPES
    if not scopes or not allowed.issuperset(scopes):
        names = ", ".join(sorted(scope.value for scope in allowed))
        raise AdministrationError(f"a key {'without' if project is None else 'of'} a project has scopes of: {names}")


def _existing(row: ProjectRow | None, project_id: str) -> ProjectRow:
    if row is None:
        raise AdministrationError(f"there is no project '{project_id}'; `longhaul projects list` shows all")
    return row


def _existing_key(row: KeyRow | None, key_id: str) -> KeyRow:
    if row is None:
        raise AdministrationError(f"there is no key '{key_id}'; `longhaul keys list` shows all")
    return row
