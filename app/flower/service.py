"""What Flower's buttons do: each is an entry in the audit log, and then what the API or a signed command does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.access.changes import FLOWER, AuditType, Operator, changing
from app.announcer import Announcer
from app.queue.commands import Command
from app.queue.publisher import TaskQueue
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.operations import listing
from app.store.responses import endings
from app.streaming.pubsub import PubSub
from config.settings import Settings

CONNECTIONS = 2


class Refused(Exception):
    """The action is not possible. The message is for the operator."""


class FlowerService:
    """What Flower reads of Postgres and, unless it is read-only, may change. Every method raises StoreUnavailable."""

    def __init__(self, settings: Settings) -> None:
        """Connects to nothing. Raises ConfigError if DATABASE_URL or REDIS_URL is unset."""
        self.db = Database(settings.database_dsn, CONNECTIONS)
        key = pubsub_key(self.db)
        self._pubsub = PubSub(settings.broker_url, key)
        self._queue = TaskQueue(settings, key)
        self._announcer = Announcer(self._pubsub, self._queue)

    async def cancel(self, response_id: str, by: Operator) -> None:
        """Cancels a response, queued or running, whether a worker is up or not. Raises Refused."""
        rows = await listing.find(self.db, [response_id])
        if not rows:
            raise Refused(f"There is no response {response_id}.")
        (row,) = rows
        if row.finished_at is not None:
            raise Refused(f"{response_id} is {row.status} already.")
        # First the entry: an operator's cancel without one cannot be, whatever dies between the two.
        await self._note(AuditType.RESPONSE_CANCELLED, response_id, row.project, {"status": row.status}, by)
        result = await endings.cancel(self.db, response_id, row.project)
        if result is not None:
            await self._announcer.tell(result)

    async def stop(self, worker: str, by: Operator) -> None:
        """Tells a worker to drain, and then to stop. Raises Refused and QueueUnavailable."""
        await self._note(AuditType.WORKER_STOPPED, worker, None, {"command": Command.SHUTDOWN.value}, by)
        reason = await self._queue.command(Command.SHUTDOWN, worker)
        if reason is not None:
            raise Refused(f"{worker} did not do it: {reason}")

    async def close(self) -> None:
        await self._announcer.close()
        await self._queue.close()
        await self._pubsub.close()
        await self.db.close()

    async def _note(
        self, kind: AuditType, resource: str, project: str | None, details: dict[str, Any], by: Operator
    ) -> None:
        async with changing(self.db, replace(by, key_id=FLOWER)) as change:
            await change.note(kind, resource, project, details)
