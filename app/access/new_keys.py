"""How a key is checked and made, whoever makes it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from app.access.caller import OPERATOR_SCOPES, PROJECT_SCOPES, Scope
from app.access.changes import AdministrationError, AuditType, Change, NothingThere, changing
from app.access.secret import hash_of, is_well_formed, new_secret, shown
from app.ids import new_id
from app.protocol.requests.bodies.organization import MAX_NAME_CHARS
from app.store.database import Database
from app.store.tenants import api_keys, projects
from app.store.tenants.api_keys import KeyRow, NewKey
from app.store.tenants.projects import ProjectRow

MAX_KEYS = 1000
"""Working keys of one project, or of the operators."""


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key, with the secret that nobody can ever read again."""

    row: KeyRow
    secret: str


async def add_key(
    change: Change,
    project: str | None,
    name: str,
    scopes: Collection[Scope],
    lifetime_seconds: float | None = None,
    service_account: str | None = None,
) -> CreatedKey:
    """Makes a key of a project that is locked, or of the operators (None). Raises AdministrationError."""
    check_name(name)
    check_scopes(project, scopes)
    await check_given(change, _names(scopes), lifetime_seconds)
    await check_key_count(change, project)
    return await insert_key(change, project, name, _names(scopes), lifetime_seconds, service_account)


async def insert_key(
    change: Change,
    project: str | None,
    name: str,
    scopes: Collection[str],
    lifetime_seconds: float | None,
    service_account: str | None,
    secret: str | None = None,
) -> CreatedKey:
    """`add_key` without its checks, and with names of scopes: a key that is rotated may have those of a later version.

    Without a `secret` it makes one.
    """
    secret, values = secret or new_secret(), sorted(scopes)
    key_id = new_id("key")
    new = NewKey(key_id, project, name, hash_of(secret), shown(secret), values, lifetime_seconds, service_account)
    row = await api_keys.create(change.connection, new)
    await change.note(AuditType.KEY_CREATED, key_id, project, {"data": {"scopes": values}})
    return CreatedKey(row, secret)


async def create_first_key(db: Database, keep: Callable[[str], None]) -> bool:
    """Makes an admin key unless there is one that works; returns whether it did. `keep` stores the secret.

    Raises StoreUnavailable, and what `keep` raises: then there is no key. (An OSError would pass for one of Postgres.)
    """
    async with changing(db) as change:
        if await api_keys.has_admin(change.connection):
            return False
        made = await insert_key(change, None, "first key", _names(OPERATOR_SCOPES), None, None)
        keep(made.secret)  # where it is found again, before the key counts
    return True


async def create_given_key(db: Database, secret: str) -> bool:
    """Makes the operator's own `secret` an admin key unless it is one; returns whether it did.

    Raises StoreUnavailable, and AdministrationError if it is no API key, another key, or one that works no longer.
    """
    if not is_well_formed(secret):
        raise AdministrationError("it is no API key; `longhaul keys generate` prints one")
    async with changing(db) as change:
        known = await api_keys.get_by_hash(change.connection, hash_of(secret))
        if known is None:
            await insert_key(change, None, "given key", _names(OPERATOR_SCOPES), None, None, secret)
            return True
    if known.state != "works":
        raise AdministrationError(f"this key is {known.state}; give another one (`longhaul keys generate`)")
    if known.project is not None or Scope.ADMIN.value not in known.scopes:
        raise AdministrationError(f"this key is {known.id}, which may not administer; give another one")
    return False


async def check_key_count(change: Change, project: str | None) -> None:
    """Refuses one more working key than MAX_KEYS with an AdministrationError. A project is locked already."""
    if await api_keys.count_working(change.connection, project) >= MAX_KEYS:
        raise AdministrationError(f"there are {MAX_KEYS} working keys already, the limit; revoke some first")


async def lock_project(change: Change, project_id: str) -> ProjectRow:
    """Returns the project, which stays as it is for this change. Raises NothingThere."""
    row = await projects.lock(change.connection, project_id)
    if row is None:
        raise NothingThere(f"there is no project '{project_id}'", "project_id")
    return row


async def lock_active_project(change: Change, project_id: str) -> ProjectRow:
    """`lock_project` for what an archived project cannot have. Raises AdministrationError."""
    row = await lock_project(change, project_id)
    if row.archived_at is not None:
        raise AdministrationError(f"the project '{project_id}' is archived", "project_id")
    return row


def check_name(name: str) -> None:
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise AdministrationError(f"a name has 1 to {MAX_NAME_CHARS} printable characters", "name")


async def check_given(change: Change, scopes: Collection[str], seconds: float | None) -> None:
    """Refuses what the key that makes the change has not itself, with an AdministrationError.

    That is a scope of operators, or a longer lifetime (None: endless).
    """
    if change.operator.key_id is None or (own := await api_keys.get(change.connection, change.operator.key_id)) is None:
        return
    if missing := {scope.value for scope in OPERATOR_SCOPES}.intersection(scopes).difference(own.scopes):
        message = f"a key gives no scope that it has not itself: {', '.join(sorted(missing))}"
        raise AdministrationError(message, "scopes")
    left = own.remaining_seconds
    if left is not None and (seconds is None or seconds > left):
        message = f"a key lives no longer than the key that makes it: at most {max(0, int(left))} seconds from now"
        raise AdministrationError(message, "expires_in_seconds")


def check_scopes(project: str | None, scopes: Collection[Scope]) -> None:
    allowed = OPERATOR_SCOPES if project is None else PROJECT_SCOPES
    if not scopes or not allowed.issuperset(scopes):
        names = ", ".join(sorted(scope.value for scope in allowed))
        message = f"a key {'without' if project is None else 'of'} a project has scopes of: {names}"
        raise AdministrationError(message, "scopes")


def _names(scopes: Collection[Scope]) -> list[str]:
    return [scope.value for scope in scopes]
