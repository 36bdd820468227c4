"""What this server lacks to do its work: Postgres, its schema, Redis, and a worker for each model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from app.protocol.types import Json
from app.store import migrate
from app.store.database import Database, StoreUnavailable
from app.store.queue import workers
from app.streaming.pubsub import PubSub, PubSubUnavailable
from config.models import ServedModel

log = logging.getLogger("longhaul.api")

CHECK_SECONDS = 1.0

RECENT_SECONDS = 1.0

Part = Literal["postgres", "schema", "redis", "workers"]
NEEDED_TO_ACCEPT = frozenset[Part]({"postgres", "schema"})
"""Without these parts background work is refused. Without the others it is stored, and runs once they are back."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelReadiness:
    """What is missing for some models."""

    missing: tuple[Part, ...]
    with_worker: tuple[str, ...]
    without_worker: tuple[str, ...]

    @property
    def accepts(self) -> bool:
        """Whether background work is accepted."""
        return NEEDED_TO_ACCEPT.isdisjoint(self.missing)

    @property
    def is_whole(self) -> bool:
        """Whether every model is served now, in the foreground, too."""
        return not self.missing

    @property
    def status(self) -> str:
        if self.is_whole:
            return "ready"
        return "degraded" if self.accepts else "not_ready"

    def body(self) -> Json:
        models = {"ready": list(self.with_worker), "without_worker": list(self.without_worker)}
        return {"status": self.status, "missing": list(self.missing), "models": models}


@dataclass(frozen=True, slots=True)
class Readiness:
    """The result of a check."""

    missing: tuple[Part, ...]
    served: frozenset[str]
    """The models that have a living worker."""

    def of(self, models: Sequence[ServedModel]) -> ModelReadiness:
        """Returns what is missing for these models: an answer names no others."""
        having = tuple(model.name for model in models if (model.base or model.name) in self.served)
        lacking = tuple(model.name for model in models if model.name not in having)
        missing: tuple[Part, ...] = (*self.missing, "workers") if lacking else self.missing
        return ModelReadiness(missing, having, lacking)


async def check(db: Database, pubsub: PubSub) -> Readiness:
    """Checks everything at once, within CHECK_SECONDS. Never raises."""
    is_supported, served, redis = await asyncio.gather(
        _within(migrate.is_supported(db)), _within(workers.ready_models(db)), _within(_is_connected(pubsub))
    )
    missing: list[Part] = []
    if is_supported is False:
        missing.append("schema")
    elif is_supported is None or served is None:
        missing.append("postgres")
    if not redis:
        missing.append("redis")
    return Readiness(tuple(missing), frozenset(served or ()))


class RecentReadiness:
    """What this server lacks: however many ask, there is one check in RECENT_SECONDS."""

    def __init__(self, db: Database, pubsub: PubSub) -> None:
        self._check = partial(check, db, pubsub)
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._found = Readiness((), frozenset())

    async def get(self) -> Readiness:
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now > self._checked_at + RECENT_SECONDS:
                self._found, self._checked_at = await self._check(), now
        return self._found


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
