"""Whether this server can generate responses now: Postgres, Redis, and a worker with a loaded engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from app.protocol.types import Json
from app.store.database import Database, StoreUnavailable
from app.store.queue import workers
from app.streaming.pubsub import PubSub, PubSubUnavailable
from config.models import ModelCatalog

log = logging.getLogger("longhaul.api")

CHECK_SECONDS = 1.0

RECENT_SECONDS = 1.0

T = TypeVar("T")


def status_text(is_ready: bool) -> str:
    return "ready" if is_ready else "not_ready"


@dataclass(frozen=True, slots=True)
class Readiness:
    """The result of a check; `missing` names what this server lacks."""

    missing: tuple[str, ...]
    models: tuple[str, ...]
    """Served models with a worker."""
    without_worker: tuple[str, ...]

    @property
    def ready(self) -> bool:
        return not self.missing

    def body(self) -> Json:
        return {
            "status": status_text(self.ready),
            "missing": list(self.missing),
            "models": {"ready": list(self.models), "without_worker": list(self.without_worker)},
        }


async def check(db: Database, pubsub: PubSub, catalog: ModelCatalog) -> Readiness:
    """Checks everything at once, within CHECK_SECONDS. Never raises."""
    redis, ready_models = await asyncio.gather(_within(_is_connected(pubsub)), _within(workers.ready_models(db)))
    names = [model.name for model in catalog.models]
    ready = tuple(name for name in names if name in (ready_models or frozenset()))
    missing = []
    if ready_models is None:
        missing.append("postgres")
    if not redis:
        missing.append("redis")
    if not ready:
        missing.append("a worker with a loaded engine")
    return Readiness(tuple(missing), ready, tuple(name for name in names if name not in ready))


class RecentReadiness:
    """Whether the server is ready, for strangers: however many ask, there is one check in RECENT_SECONDS."""

    def __init__(self, db: Database, pubsub: PubSub, catalog: ModelCatalog) -> None:
        self._check = partial(check, db, pubsub, catalog)
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._ready = False

    async def get(self) -> bool:
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now > self._checked_at + RECENT_SECONDS:
                self._ready, self._checked_at = (await self._check()).ready, now
        return self._ready


async def _is_connected(pubsub: PubSub) -> bool:
    await pubsub.ping()
    return pubsub.connected


async def _within(check: Awaitable[T]) -> T | None:
    """Returns the result of `check`, or None if it fails or takes too long."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check
    except (TimeoutError, StoreUnavailable, PubSubUnavailable):
        return None
    except Exception as error:  # For instance, the schema does not exist yet.
        log.warning("readiness check failed: %s", type(error).__name__)
        return None
