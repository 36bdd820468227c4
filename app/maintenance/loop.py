"""The loop of maintenance: it redelivers, releases, fails, deletes.

Copies share the work: a step locks the rows it takes (SKIP LOCKED), or changes them only if nobody else has. If a copy
dies between taking a row and acting on it, a later look finds the row.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from app.access.erasure import erase_due
from app.aio import end_tasks
from app.announcer import Announcer
from app.batches.progress import BatchProgress
from app.dispatcher import Dispatcher
from app.maintenance.bulk import BulkWork
from app.metrics.instruments import MaintenanceMetrics
from app.protocol.status import Status
from app.protocol.text import type_and_places
from app.queue.message import Message
from app.queue.publisher import QueueUnavailable, TaskQueue
from app.store import retention
from app.store.database import Database, StoreLocked, StoreUnavailable
from app.store.files import expiry
from app.store.queue import dispatch, drains, redelivery, windows, workers
from app.store.queue.workers import Released
from app.store.responses import endings, queued
from app.store.responses.endings import Overdue
from app.store.tenants import limits, usage
from app.store.webhooks import deliveries
from app.streaming.pubsub import PubSub
from app.webhooks.deliverer import Deliverer
from config.logging.context import about
from config.settings import Settings

log = logging.getLogger("longhaul.maintenance")

ROUND_SECONDS = 0.5
"""Pause between two looks for dead workers, released responses and passed deadlines."""
LOST_SECONDS = 2.0
"""Before a response that was sent and not claimed waits again; doubles each time, up to 64 s (redelivery.py)."""
SWEEP_SECONDS = 10.0
RAISE_PAUSE = 100
"""Looking at what is due takes one part of so many of the time, at most (50 ms for 50,000 responses)."""
MERGE_AFTER_SECONDS = 5.0
"""A log is merged only after its readers had time to finish from pub/sub."""
STALE_SECONDS = 60.0
"""How long a part of a file may get nothing, beyond twice what its client may take for the next bytes."""
SUSPECTS_SECONDS = 30.0
"""How long suspects wait for a worker without others' work: a start of an engine, mostly."""
BATCH = 500
"""Rows per statement."""
ABANDONED = timedelta(days=10)
"""A delivery that has not ended for so long is of an endpoint that is disabled, or gone: tries end within five days."""
ENTRIES = 10_000
"""Notes of usage that one statement adds to the ledger."""

_OVERDUE = {
    Status.QUEUED: ("queue_timeout", "no worker took it within its queue timeout"),
    Status.IN_PROGRESS: ("run_timeout", "it ran for longer than its run timeout"),
}
_MISSED = ("completion_window_expired", "it was not completed within its completion window")


def _why(overdue: Overdue) -> tuple[str, str]:
    """The code and the message of its error."""
    return _MISSED if overdue.is_due else _OVERDUE[overdue.status]


@dataclass
class Maintenance:
    """What the maintenance loop does, step by step; each step waits on its own while Postgres or Redis is away."""

    settings: Settings
    db: Database
    pubsub: PubSub
    queue: TaskQueue
    announcer: Announcer
    metrics: MaintenanceMetrics
    batches: BatchProgress
    webhooks: Deliverer
    round_seconds: float = ROUND_SECONDS
    lost_seconds: float = LOST_SECONDS
    _servers: workers.ServerWatch = field(default_factory=workers.ServerWatch)
    _suspects_since: dict[str, float] = field(default_factory=dict)
    """The time since which suspects of a queue wait and none was sent."""
    _raises_at: float = -math.inf
    """When it looks again at what is due, at the earliest."""
    _waiting: set[str] = field(default_factory=set)
    """The names of steps that found Postgres or Redis away."""

    def __post_init__(self) -> None:
        self._dispatcher = Dispatcher(self.db, self.queue)
        self._bulk = BulkWork(self.db, self.announcer, self.settings)

    async def run(self) -> None:
        """Repeats every step at its interval until cancelled."""
        often = self.round_seconds
        steps = (
            self._repeat(often, self.release_dead_workers),
            self._repeat(often, self.redeliver),
            self._repeat(often, self.send_released),
            self._repeat(often, self.dispatch),
            self._repeat(often, self.expire),
            self._repeat(often, self.fail_exhausted),
            self._repeat(often, self._bulk.carry_out),
            self._repeat(often, self.carry_batches_on),
            self._repeat(SWEEP_SECONDS, self.raise_windows),
            self._repeat(SWEEP_SECONDS, self.sweep),
            self._repeat(SWEEP_SECONDS, self.delete_files),
            self._repeat(SWEEP_SECONDS, self.add_up),
            self._repeat(SWEEP_SECONDS, self.erase),
            self._repeat(self.webhooks.wait, self.webhooks.deliver),
        )
        tasks = [asyncio.create_task(step) for step in steps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Not a TaskGroup: redis-py may swallow a cancellation, and a TaskGroup cancels only once.
            await end_tasks(*tasks)
            await self._bulk.close()

    async def release_dead_workers(self) -> None:
        """Releases the responses of dead workers, and sends them; fails those under which too many crashed."""
        lease = self.settings.lease_seconds
        watch, tell = self._servers, self._on_released
        dead = await workers.release_dead_workers(self.db, watch=watch, lease_seconds=lease, tell=tell)
        self.metrics.dead_workers.inc(len(dead))
        for worker in dead:
            log.error("worker %s is gone; its responses go to other workers", worker)
        if dead:
            await self.fail_exhausted()
            await self.send_released()  # its own clock would let them wait for up to a round more

    def _on_released(self, each: Released) -> None:
        self.metrics.lost_attempts.inc()
        with about(each.id, attempt=each.attempt, request_id=each.request_id, worker=each.node):
            log.info("the worker is gone; the response goes to another one")

    async def send_released(self) -> None:
        """Sends messages for released responses. Suspects wait for a worker without others' work, but not for ever."""
        await self._dispatcher.send_released()
        now = time.monotonic()
        queues = await redelivery.queues_of_suspects(self.db)
        self._suspects_since = {queue: self._suspects_since.get(queue, now) for queue in queues}
        if not queues:
            return
        anywhere = [queue for queue, since in self._suspects_since.items() if now > since + SUSPECTS_SECONDS]
        if messages := await redelivery.take_suspects(self.db, anywhere):
            for message in messages:
                self._suspects_since.pop(message.queue, None)
            await self._send(messages)

    async def dispatch(self) -> None:
        """Sends what waits and has room. Workers do so after their responses end; this is for when none does."""
        for queue in await dispatch.busy_queues(self.db):
            await self._dispatcher.dispatch(queue)

    async def redeliver(self) -> None:
        """Makes what was sent and not claimed wait again: Redis lost it, or a worker leaves it lying, or is gone."""
        while lost := await redelivery.put_back(self.db, self.lost_seconds, BATCH):
            self.metrics.redeliveries.inc(len(lost))
            log.info("%d messages led to no claim; their responses wait again", len(lost))

    async def _send(self, messages: Sequence[Message]) -> None:
        log.info("sending %d messages", len(messages))
        await self.queue.enqueue(*messages)

    async def expire(self) -> None:
        """Fails responses that have waited or run for longer than their timeout, or have missed their window."""
        failed_in_vain: set[str] = set()
        while found := await endings.find_overdue(self.db, BATCH, failed_in_vain):
            failed = await self._fail_queued([each for each in found if each.ends_at_once])
            for each in found:
                if each.id not in failed and not await self._fail(each.id, *_why(each), each.status):
                    failed_in_vain.add(each.id)

    async def _fail_queued(self, overdue: Sequence[Overdue]) -> set[str]:
        """Fails those that nobody else holds, all at once; returns their ids. If that raises, each is failed alone."""
        failed: set[str] = set()
        for code, message in {_why(each) for each in overdue}:
            request_ids = {each.id: each.request_id for each in overdue if _why(each) == (code, message)}
            try:
                notices = await queued.fail(self.db, list(request_ids), code, message)
            except StoreUnavailable:
                raise
            except Exception as error:
                log.error("%d responses cannot be failed together: %s", len(request_ids), type_and_places(error))
                continue
            for notice in notices:
                with about(notice.response_id, request_id=request_ids[notice.response_id]):
                    log.error("failed: %s", message)
            await self.announcer.tell_each(notices)
            failed |= {notice.response_id for notice in notices}
        return failed

    async def raise_windows(self) -> None:
        """Says how far work in windows rises in the order of its queue."""
        began = time.monotonic()
        if began >= self._raises_at:
            await windows.raise_all(self.db)
            self._raises_at = began + RAISE_PAUSE * (time.monotonic() - began)

    async def fail_exhausted(self) -> None:
        """Fails released responses that no worker may claim again."""
        max_crashes, failed_in_vain = self.settings.max_crashes, set[str]()
        while found := await endings.find_exhausted(self.db, max_crashes, limit=BATCH, but=failed_in_vain):
            for each in found:
                message = f"{each.attempts} attempts did not end it, and its worker crashed {each.crashes} times"
                if not await self._fail(each.id, "server_error", message, Status.IN_PROGRESS):
                    failed_in_vain.add(each.id)

    async def _fail(self, response_id: str, code: str, message: str, only: Status) -> bool:
        """Fails one response; returns whether it did. If that raises, the others that are due must not wait for it."""
        try:
            result = await endings.fail(self.db, response_id, code, message, only=only)
        except StoreLocked:
            return False  # it has its turn at the next look
        except StoreUnavailable:
            raise
        except Exception as error:
            with about(response_id):
                log.error("the response cannot be failed: %s", type_and_places(error))
            return False
        if result is not None:
            with about(response_id, attempt=result.row.attempt, request_id=result.row.request_id):
                log.error("failed: %s", message)
                await self.announcer.tell(result)
        return result is not None

    async def carry_batches_on(self) -> None:
        """Does what can be done now for each unfinished batch."""
        await self.batches.advance()

    async def sweep(self) -> None:
        """Merges the logs of finished responses; deletes what is at the end of its retention."""
        now, settings = await retention.now(self.db), self.settings
        await dispatch.forget_idle_flows(self.db)
        await drains.forget(self.db)
        while await retention.merge_finished(self.db, now - timedelta(seconds=MERGE_AFTER_SECONDS), BATCH) == BATCH:
            pass
        while await retention.delete_events(self.db, now - timedelta(seconds=settings.event_retention_seconds), BATCH):
            pass
        stored = now - timedelta(seconds=settings.stored_retention_seconds)
        unstored = now - timedelta(seconds=settings.unstored_retention_seconds)
        while deleted := await retention.delete_expired(self.db, stored, unstored, BATCH):
            log.info("deleted %d responses at the end of their retention", deleted)
        while deleted := await retention.delete_batches(self.db, stored):
            log.info("deleted %d batches at the end of their retention", deleted)
        kept = now - timedelta(seconds=settings.event_retention_seconds)
        while await deliveries.delete_old(self.db, kept, kept - ABANDONED, BATCH):
            pass
        if deleted := await retention.delete_conversations(self.db, BATCH):
            log.info("deleted %d conversations at the end of their retention", deleted)

    async def delete_files(self) -> None:
        """Deletes files that expired, and the bytes of those that are gone, or that nobody will complete."""
        while await expiry.delete_expired(self.db, BATCH):
            pass
        silent = STALE_SECONDS + 2 * self.settings.body_seconds
        while await expiry.drop_abandoned(self.db, silent, BATCH):
            pass
        await expiry.delete_dropped(self.db)

    async def add_up(self) -> None:
        """Adds up what ended responses used and gave back; deletes records at the end of their retention."""
        await limits.settle(self.db)
        while await usage.add_up(self.db, ENTRIES) == ENTRIES:
            pass
        kept = timedelta(seconds=self.settings.usage_retention_seconds)
        before = await retention.now(self.db) - kept
        while await retention.delete_records(self.db, before, BATCH):
            pass

    async def erase(self) -> None:
        """Erases the projects whose time has come."""
        await erase_due(self.db, self.pubsub, self.announcer)

    async def _repeat(self, pause: float | Callable[[], Awaitable[None]], step: Callable[[], Awaitable[None]]) -> None:
        wait = pause if callable(pause) else partial(asyncio.sleep, pause)
        name = getattr(step, "__name__", "maintenance")
        while True:
            try:
                with self.metrics.step(name):
                    await step()
                if name in self._waiting:
                    self._waiting.discard(name)
                    log.info("%s works again", name)
            except (StoreUnavailable, QueueUnavailable) as error:
                if name not in self._waiting:
                    log.warning("%s waits: %s (%s)", name, type(error).__name__, error)
                self._waiting.add(name)
            except Exception:
                log.exception("%s went wrong", name)
            await wait()
