"""Maintenance without batches and webhooks."""

from __future__ import annotations

import asyncio
from typing import Any

from app.announcer import Announcer
from app.maintenance.loop import Maintenance
from app.metrics.instruments import MaintenanceMetrics
from app.store.database import Database
from app.streaming.pubsub import PubSub
from config.settings import Settings


class Nothing:
    """Batches that need nothing, and webhooks to which nothing is delivered."""

    async def advance(self) -> None: ...

    async def deliver(self) -> None: ...

    async def wait(self) -> None:
        await asyncio.Event().wait()


def maintenance_of(settings: Settings, db: Database, pubsub: PubSub, queue: Any, **times: float) -> Maintenance:
    nothing: Any = Nothing()
    announcer, metrics = Announcer(pubsub, queue), MaintenanceMetrics()
    return Maintenance(settings, db, pubsub, queue, announcer, metrics, nothing, nothing, **times)
