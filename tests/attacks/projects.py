"""The projects of the attacked installation: the attacker's, the bystander's, and those that single attacks need."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from app.access.administration import Administration
from app.protocol.limits import ALL_MODELS, LimitKind
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.responses import endings
from app.streaming.pubsub import PubSub
from tests.support.tenants import Tenant, administration, tenant

MIB = 2**20

UNTRUSTED: Mapping[str, int] = MappingProxyType(
    {
        "requests_per_minute": 60,
        "reads_per_minute": 600,
        "tokens_per_minute": 200_000,
        "queued_bytes": 64 * MIB,
        "unfinished_responses": 64,
        "stored_bytes": 1024 * MIB,
    }
)
"""What docs/tenants.md recommends for a project that nobody trusts."""


@dataclass(frozen=True, slots=True)
class Projects:
    """What an operator knows and can do, beside the processes of the installation."""

    database_url: str
    redis_url: str
    attacker: Tenant
    bystander: Tenant

    @classmethod
    async def make(cls, database_url: str, redis_url: str) -> Projects:
        async with _administration(database_url, redis_url) as admin:
            made = [await tenant(admin, name) for name in ("attacker", "bystander")]
        return cls(database_url, redis_url, *made)

    async def limited(self, values: Mapping[str, int]) -> Tenant:
        """Makes a project with these limits on all models, which no process knows yet."""
        async with _administration(self.database_url, self.redis_url) as admin:
            made = await admin.create_project("limited")
            await admin.set_limits(made.id, ALL_MODELS, {LimitKind(kind): value for kind, value in values.items()})
            return await tenant(admin, "limited", project=made.id)

    async def cancel(self, created: Sequence[Mapping[str, Any]]) -> None:
        """Cancels responses as an operator: their attacker may have used up its requests. Refusals have no id."""
        async with _database(self.database_url) as db:
            await endings.cancel_all(db, [each["id"] for each in created if "id" in each], None)


@contextlib.asynccontextmanager
async def _database(url: str) -> AsyncIterator[Database]:
    db = Database(url, 2)
    try:
        yield db
    finally:
        await db.close()


@contextlib.asynccontextmanager
async def _administration(database_url: str, redis_url: str) -> AsyncIterator[Administration]:
    async with _database(database_url) as db:
        pubsub = PubSub(redis_url, pubsub_key(db))
        try:
            yield administration(db, pubsub)
        finally:
            await pubsub.close()
