"""The loop that finds what messages lost: run as `python -m workers.maintenance`, in as many copies as you like.

Every look is one statement that takes what it finds (SKIP LOCKED), so copies share the work. A copy that
dies between finding and doing leaves a row that is found again later.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

from app.protocol.events.chunk import Chunk
from app.protocol.status import Status
from app.queue.message import Message
from app.queue.publisher import QueueUnavailable, TaskQueue
from app.store import claims, endings, redelivery, retention, workers
from app.store.database import Database, StoreUnavailable
from app.store.migrate import wait_for_schema
from app.streaming.pubsub import PubSub, PubSubUnavailable
from config.logging import setup_logging
from config.settings import ConfigError, Settings, load_settings

log = logging.getLogger("longhaul.maintenance")

SWEEP_SECONDS = 10.0
MERGE_AFTER_SECONDS = 5.0
"""A log is merged only after its readers had time to finish on what they heard."""
BATCH = 500


_OVERDUE = {
    Status.QUEUED: ("queue_timeout", "no worker took it within its queue timeout"),
    Status.IN_PROGRESS: ("run_timeout", "it ran for longer than its run timeout"),
}


class Maintenance:
    """Takes over from the dead, sends again, and deletes what is due."""

    def __init__(self, settings: Settings, db: Database, pubsub: PubSub, queue: TaskQueue) -> None:
        self._settings = settings
        self._db = db
        self._pubsub = pubsub
        self._queue = queue
        self._away: set[str] = set()

    async def run(self) -> None:
        """Looks after everything until it is cancelled."""
        await asyncio.gather(
            self._every(self._settings.maintenance_seconds, self.rescue),
            self._every(self._settings.maintenance_seconds, self.resend),
            self._every(self._settings.lost_seconds, self.find_lost),
            self._every(self._settings.maintenance_seconds, self.expire),
            self._every(SWEEP_SECONDS, self.sweep),
        )

    async def rescue(self) -> None:
        """Takes responses from dead workers; `resend` finds them next. What killed too many is failed."""
        for worker in await workers.remove_dead_workers(self._db):
            crashed = await claims.release_all(self._db, worker, self._settings.max_crashes)
            log.warning("worker %s is gone; its responses go to others", worker)
            message = f"its worker crashed {self._settings.max_crashes} times while it ran"
            for response_id in crashed:
                await self._fail(response_id, "server_error", message)

    async def expire(self) -> None:
        """Fails what has waited, or run, for longer than it may."""
        for response_id, status in await endings.find_overdue(self._db, BATCH):
            code, message = _OVERDUE[status]
            await self._fail(response_id, code, message, only=status)

    async def _fail(self, response_id: str, code: str, message: str, *, only: Status | None = None) -> None:
        ended = await endings.fail(self._db, response_id, code, message, only=only)
        if ended is not None and ended.chunk is not None:
            log.error("%s failed: %s", response_id, message)
            await self._ring(ended.chunk)

    async def _ring(self, chunk: Chunk) -> None:
        try:
            await self._pubsub.publish([chunk])
        except PubSubUnavailable:
            log.debug("readers of %s will look into Postgres", chunk.response_id)

    async def resend(self) -> None:
        """Sends messages for what its worker gave up, or was taken from."""
        while messages := await redelivery.take_released(self._db, BATCH):
            await self._send(messages)

    async def find_lost(self) -> None:
        """Sends the messages again that Redis lost, that a worker died with, or that were never sent."""
        seconds = self._settings.lost_seconds
        lists = await redelivery.lists_to_check(self._db, seconds)
        if not lists:
            return
        heads = {waiting: await self._queue.head(waiting.queue, waiting.priority) for waiting in lists}
        while messages := await redelivery.take_undelivered(self._db, heads, seconds, BATCH):
            await self._send(messages)

    async def _send(self, messages: Sequence[Message]) -> None:
        log.info("sending %d messages again", len(messages))
        await self._queue.enqueue_all(messages)

    async def sweep(self) -> None:
        """Merges the logs of finished responses, and deletes events and rows when their time has come."""
        now, keep = datetime.now(UTC), self._settings
        while await retention.merge_finished(self._db, now - timedelta(seconds=MERGE_AFTER_SECONDS), BATCH) == BATCH:
            pass
        while await retention.delete_events(self._db, now - timedelta(seconds=keep.event_retention_seconds), BATCH):
            pass
        stored = now - timedelta(seconds=keep.stored_retention_seconds)
        unstored = now - timedelta(seconds=keep.unstored_retention_seconds)
        while deleted := await retention.delete_expired(self._db, stored, unstored, BATCH):
            log.info("deleted %d responses whose time had come", deleted)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        name = getattr(work, "__name__", "maintenance")
        while True:
            try:
                await work()
                if name in self._away:
                    self._away.discard(name)
                    log.info("%s works again", name)
            except (StoreUnavailable, QueueUnavailable) as error:
                if name not in self._away:
                    log.warning("%s waits: %s (%s)", name, type(error).__name__, error)
                self._away.add(name)
            except Exception:
                log.exception("%s went wrong", name)
            await asyncio.sleep(seconds)


async def maintain(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, me.cancel)
    db = Database(settings.database_dsn, 4)
    pubsub = PubSub(settings.broker_url)
    queue = TaskQueue(settings)
    try:
        await wait_for_schema(db)
        await Maintenance(settings, db, pubsub, queue).run()
    except asyncio.CancelledError:
        log.info("stopped")
    finally:
        await queue.close()
        await pubsub.close()
        await db.close()


def main() -> int:
    try:
        settings = load_settings()
        setup_logging(settings.log_level)
        asyncio.run(maintain(settings))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
