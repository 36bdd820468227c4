"""Whether this process can serve: Postgres, Redis, and a worker with a loaded engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from app.store import workers
from app.store.database import Database, StoreUnavailable
from app.streaming.pubsub import PubSub, PubSubUnavailable
from config.models import ModelCatalog

log = logging.getLogger("longhaul.api")

CHECK_SECONDS = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Readiness:
    """What was found; `missing` says in words what this server lacks."""

    missing: tuple[str, ...]
    models: tuple[str, ...]
    """Served models with a worker."""
    without_worker: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return not self.missing

    def body(self) -> dict[str, Any]:
        return {
            "status": "ready" if self.ready else "not_ready",
            "missing": list(self.missing),
            "models": {"ready": list(self.models), "without_worker": list(self.without_worker)},
        }


async def check(db: Database, pubsub: PubSub, catalog: ModelCatalog) -> Readiness:
    """Looks at everything at once; answers within CHECK_SECONDS and a little. Never raises."""
    redis, loaded = await asyncio.gather(_within(_heard(pubsub)), _within(_loaded(db)))
    names = [model.name for model in catalog.models]
    ready = tuple(name for name in names if name in (loaded or frozenset()))
    missing = []
    if loaded is None:
        missing.append("postgres")
    if not redis:
        missing.append("redis")
    if not ready:
        missing.append("a worker with a loaded engine")
    return Readiness(tuple(missing), ready, tuple(name for name in names if name not in ready))


async def _heard(pubsub: PubSub) -> bool:
    await pubsub.ping()
    return pubsub.connected


async def _loaded(db: Database) -> set[str]:
    return await workers.ready_models(db)


async def _within(check: Awaitable[T]) -> T | None:
    """What `check` returns; None where it fails or takes too long."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check
    except (TimeoutError, StoreUnavailable, PubSubUnavailable):
        return None
    except Exception as error:  # a schema that is not there yet, for instance
        log.warning("readiness check failed: %s", type(error).__name__)
        return None
