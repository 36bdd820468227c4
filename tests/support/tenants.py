"""Projects and API keys for tests, and an API that asks for keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.access.administration import Administration
from app.access.caller import PROJECT_SCOPES, Scope
from app.access.changes import Changes
from app.access.new_keys import CreatedKey
from app.store.database import Database
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


def administration(db: Database, pubsub: PubSub) -> Administration:
    return Administration(Changes(db, pubsub), {})


@asynccontextmanager
async def as_caller(api: Api, key: Tenant | CreatedKey | str) -> AsyncIterator[Api]:
    """The same API with a client that sends this key."""
    secret = key if isinstance(key, str) else key.secret if isinstance(key, CreatedKey) else key.key.secret
    async with client_of(api.url, authorization=f"Bearer {secret}") as client:
        yield Api(api.server, client)
