"""Delivering what is due: a step of maintenance, in any number of copies."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from random import random

from app.aio import BackgroundTasks
from app.metrics.instruments import MaintenanceMetrics
from app.protocol.text import type_and_places
from app.protocol.types import Json
from app.store.database import Database, StoreUnavailable, retry_until_available
from app.store.webhooks import deliveries, endpoints
from app.store.webhooks.deliveries import Claimed
from app.streaming.pubsub import ENDINGS, PubSub
from app.streaming.subscription import Subscription
from app.webhooks import policy
from app.webhooks.policy import Outcome
from app.webhooks.sender import SECONDS, Sender

log = logging.getLogger("longhaul.maintenance")

DELIVERIES_AT_ONCE = 256
"""Deliveries that one process has under way. Each endpoint has few of them, so one that hangs leaves room."""
CONNECTIONS = 4
"""Connections to Postgres, of their own: nothing else of maintenance waits behind deliveries."""
LEASE_SECONDS = 2 * SECONDS
"""Time after which a delivery that was claimed and not noted is sent again."""
POLL_SECONDS = 1.0
"""Pause between two looks without a ring."""
PAUSE_SECONDS = 0.005
"""The shortest pause between two looks: endings come together."""
CLOSE_SECONDS = 3.0
"""How long attempts may go on when the process ends; what is cut off is sent again."""

_OUTCOMES = {"delivered": "delivered", "pending": "failed", "failed": "given_up"}
"""What becomes of a delivery -> the outcome of its attempt in metrics."""


class Deliverer:
    """Claims what is due, sends it, and notes what came of it. An ending that is published rings, once there is an
    endpoint; without Redis it looks every POLL_SECONDS."""

    def __init__(self, db: Database, pubsub: PubSub, sender: Sender, metrics: MaintenanceMetrics) -> None:
        self._db = db.sibling(CONNECTIONS)
        self._pubsub = pubsub
        self._sender = sender
        self._metrics = metrics
        self._tasks = BackgroundTasks()
        self._listening = AsyncExitStack()
        self._doorbell: Subscription | None = None

    async def close(self) -> None:
        await self._tasks.close(CLOSE_SECONDS)
        await self._listening.aclose()
        self._sender.close()
        await self._db.close()

    async def wait(self) -> None:
        """Returns when something may be due."""
        if self._doorbell is None:
            await asyncio.sleep(POLL_SECONDS)
            return
        await asyncio.sleep(PAUSE_SECONDS)
        await self._doorbell.wait(POLL_SECONDS)
        self._doorbell.clear_missed()

    async def deliver(self) -> None:
        """Begins to deliver what is due, as far as there is room. Raises StoreUnavailable."""
        if self._doorbell is None:
            if not await endpoints.any_exists(self._db):
                return
            self._doorbell = await self._listening.enter_async_context(self._pubsub.listen(ENDINGS))
        if room := DELIVERIES_AT_ONCE - len(list(self._tasks)):
            for claimed in await deliveries.claim(self._db, room, LEASE_SECONDS):
                self._tasks.start(self._deliver(claimed))

    async def _deliver(self, claimed: Claimed) -> None:
        try:
            outcome = await self._attempt(claimed)
            noted = policy.noted(outcome, claimed.tries, claimed.failing_seconds, random())
            self._metrics.webhook_attempts.labels(_OUTCOMES[noted.status]).inc()
            if noted.disable is not None:
                log.warning(
                    "webhook endpoint %s of %s is disabled: %s", claimed.endpoint, claimed.project, noted.disable
                )
            attempt: Json = {"at": int(claimed.timestamp), "status_code": outcome.status}
            attempt |= {"error": outcome.error, "body": outcome.body}
            await retry_until_available(partial(deliveries.note, self._db, claimed, attempt, noted))
        finally:
            if self._doorbell is not None:
                self._doorbell.mark_missed()  # there is room for the next one

    async def _attempt(self, claimed: Claimed) -> Outcome:
        try:
            return await self._sender.send(claimed, claimed.event_id, claimed.body, claimed.timestamp)
        except StoreUnavailable:
            raise  # it is sent when its lease ends
        except Exception as error:
            log.error("an attempt to deliver to %s went wrong: %s", claimed.endpoint, type_and_places(error))
            return Outcome(None, "The server had an error.")
