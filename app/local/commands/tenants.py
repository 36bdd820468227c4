"""What `longhaul keys` and `longhaul projects` do and print; apart from the commands, because it imports a lot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TypeVar

from app.access.administration import Administration
from app.access.caller import OPERATOR_SCOPES, PROJECT_SCOPES, Scope
from app.access.changes import AdministrationError, Changes, NothingThere
from app.access.new_keys import CreatedKey, create_first_key
from app.local.errors import LocalError
from app.local.home import Home, with_running_services
from app.protocol.limits import LimitKind, LimitState
from app.store.database import Database, StoreUnavailable
from app.store.keys import pubsub_key
from app.store.tenants import api_keys, limits, projects
from app.store.tenants.api_keys import KeyRow
from app.store.tenants.limits import LimitRow
from app.store.tenants.projects import ProjectRow
from app.streaming.pubsub import PubSub
from config.settings import ConfigError, Settings, load_settings

T = TypeVar("T")

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS
ALL, NONE = "all", "none"

_NEVER = "-"


def create_key(project: str | None, name: str, scopes: str | None, days: float | None) -> tuple[str, str]:
    """Returns a line about the new key, and the key. `project` None: an operator's key."""
    allowed = OPERATOR_SCOPES if project is None else PROJECT_SCOPES
    wanted = allowed if scopes is None else _scopes(scopes)
    lifetime = None if days is None else days * DAY_SECONDS
    return _new(_administer(lambda to: to.create_key(project, name, wanted, lifetime)))


def list_keys(project: str | None) -> list[str]:
    """Returns a line for each key, of one project or of all."""
    found = _administer(lambda to: api_keys.find_all(to.db) if project is None else api_keys.find_of(to.db, project))
    return [_key_line(key) for key in found]


def revoke_key(key_id: str) -> str:
    return _key_line(_administer(lambda to: to.revoke_key(key_id)))


def rotate_key(key_id: str, overlap_hours: float) -> tuple[str, str]:
    """Returns a line about the new key, and the key."""
    return _new(_administer(lambda to: to.rotate_key(key_id, overlap_hours * HOUR_SECONDS)))


def create_project(name: str, models: str, tool_servers: str, top_tier: str, weight: float) -> str:
    """Returns the id of the new project."""
    permitted = _permitted(models), _permitted(tool_servers)
    return _administer(lambda to: to.create_project(name, *permitted, top_tier, weight)).id


def set_weight(project_id: str, weight: float) -> str:
    return _project_line(_administer(lambda to: to.change_project(project_id, weight=weight)))


def list_projects() -> list[str]:
    return [_project_line(project) for project in _administer(lambda to: projects.find_all(to.db))]


def permit(project_id: str, models: str, tool_servers: str, top_tier: str | None) -> str:
    permitted = _permitted(models), _permitted(tool_servers)
    return _project_line(_administer(lambda to: to.permit(project_id, *permitted, top_tier)))


def archive_project(project_id: str) -> str:
    return _project_line(_administer(lambda to: to.archive_project(project_id)))


def set_limit(project_id: str, kind: str, value: int, model: str) -> list[str]:
    """Returns a line for each limit of the project."""
    _administer(lambda to: to.set_limits(project_id, model, {_kind(kind): value}))
    return list_limits(project_id)


def remove_limit(project_id: str, kind: str, model: str) -> list[str]:
    """Returns a line for each limit that the project still has."""
    _administer(lambda to: to.remove_limit(project_id, _kind(kind), model))
    return list_limits(project_id)


def list_limits(project_id: str | None) -> list[str]:
    """Returns a line for each limit: of one project with what is taken of it now, or of all."""
    if project_id is None:
        return ["\t".join(_limit_fields(row)) for row in _administer(lambda to: limits.find(to.db))]
    states = _administer(lambda to: limits.states(to.db, project_id))
    return ["\t".join((*_limit_fields(state), f"taken {state.value - state.remaining}")) for state in states]


def _limit_fields(limit: LimitRow | LimitState) -> tuple[str, ...]:
    return limit.project, limit.model, limit.kind.value, str(limit.value)


def _kind(sent: str) -> LimitKind:
    try:
        return LimitKind(sent)
    except ValueError:
        raise ConfigError(f"limits: expected one of {', '.join(kind.value for kind in LimitKind)}") from None


async def make_first_key(db: Database, home: Home) -> bool:
    """Makes an admin key and keeps it in the home's file, unless there is one that works; returns whether it did.

    Raises LocalError and StoreUnavailable.
    """
    return await create_first_key(db, home.keep_admin_key)


def _administer(act: Callable[[Administration], Awaitable[T]]) -> T:
    """Returns what `act` returns. Raises ConfigError and LocalError."""
    return asyncio.run(_administer_async(with_running_services(load_settings()), act))


async def _administer_async(settings: Settings, act: Callable[[Administration], Awaitable[T]]) -> T:
    db = Database(settings.database_dsn, 2)
    pubsub = PubSub(settings.broker_url, pubsub_key(db))
    try:
        return await act(Administration(Changes(db, pubsub), settings.new_project_limits))
    except NothingThere as error:
        raise LocalError(f"{error}; `longhaul keys list` and `longhaul projects list` show all") from None
    except AdministrationError as error:
        raise LocalError(str(error)) from None
    except StoreUnavailable as error:
        raise LocalError(f"DATABASE_URL: Postgres cannot be reached ({error})") from None
    finally:
        await pubsub.close()
        await db.close()


def _scopes(sent: str) -> frozenset[Scope]:
    try:
        return frozenset(Scope(name.strip()) for name in sent.split(","))
    except ValueError:
        names = ", ".join(scope.value for scope in Scope)
        raise ConfigError(f"--scopes: expected some of {names}, with commas") from None


def _permitted(sent: str) -> frozenset[str] | None:
    if sent == ALL:
        return None
    return frozenset() if sent == NONE else frozenset(filter(None, map(str.strip, sent.split(","))))


def _new(made: CreatedKey) -> tuple[str, str]:
    return _key_line(made.row), made.secret


def _key_line(key: KeyRow) -> str:
    state = "revoked" if key.revoked_at else "archived" if key.is_archived else "works"
    if state == "works" and key.remaining_seconds is not None and key.remaining_seconds <= 0:
        state = "expired"
    fields = (key.id, key.project or "(operators)", key.name, ",".join(key.scopes), key.shown, state)
    times = (f"expires {_time(key.expires_at)}", f"last used {_time(key.last_used_at)}")
    return "\t".join((*fields, *times))


def _project_line(project: ProjectRow) -> str:
    state = "archived" if project.archived_at else "active"
    models, servers = _listed(project.models), _listed(project.tool_servers)
    permitted = (f"models {models}", f"tool servers {servers}", f"tier {project.top_tier}")
    return "\t".join((project.id, project.name, state, *permitted, f"weight {project.weight:g}"))


def _listed(names: Iterable[str] | None) -> str:
    return ALL if names is None else ",".join(sorted(names)) or NONE


def _time(moment: datetime | None) -> str:
    return _NEVER if moment is None else moment.strftime("%Y-%m-%d %H:%M")
