"""Projects and API keys for tests, and an API that asks for keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import text

from app.access.administration import Administration
from app.access.caller import PROJECT_SCOPES, Scope
from app.access.changes import Changes
from app.access.new_keys import CreatedKey
from app.store.database import Database
from app.store.tenants import api_keys
from app.store.tenants.api_keys import KeyRow
from app.streaming.pubsub import PubSub
from tests.support.api import Api, client_of


@dataclass(frozen=True, slots=True)
class Tenant:
    """One project with one key."""

    project: str
    key: CreatedKey

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key.secret}"}


async def tenant(
    admin: Administration, name: str, scopes: Collection[Scope] = PROJECT_SCOPES, project: str | None = None
) -> Tenant:
    """Makes a project, unless one is named, and a key of it."""
    if project is None:
        project = (await admin.create_project(name)).id
    return Tenant(project, await admin.create_key(project, name, scopes))


async def keys_of(db: Database, project: str | None) -> list[KeyRow]:
    """All keys of a project, or of the operators, the oldest first."""
    owned = text("SELECT hash FROM api_keys WHERE project IS NOT DISTINCT FROM :project ORDER BY created_at, id")
    hashes = [row.hash for row in await db.execute(owned, {"project": project})]
    found = await api_keys.find(db, hashes)
    return [found[each] for each in hashes]


def administration(db: Database, pubsub: PubSub) -> Administration:
    return Administration(Changes(db, pubsub), {})


@asynccontextmanager
async def as_caller(api: Api, key: Tenant | CreatedKey | str) -> AsyncIterator[Api]:
    """The same API with a client that sends this key."""
    secret = key if isinstance(key, str) else key.secret if isinstance(key, CreatedKey) else key.key.secret
    async with client_of(api.url, authorization=f"Bearer {secret}") as client:
        yield Api(api.server, client)
