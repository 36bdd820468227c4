"""Dispatching: sending what waits in Postgres as soon as a worker has room for it (app/store/queue/dispatch.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from app.aio import end_tasks
from app.protocol.text import type_and_places
from app.queue.message import Message
from app.queue.publisher import QueueUnavailable, TaskQueue
from app.scheduling.loads import Ahead
from app.store.database import Database, StoreUnavailable
from app.store.queue import dispatch as store
from app.store.queue import redelivery
from app.store.queue.dispatch import FlowCorrection, QueueFlow
from app.store.rows import ResponseRow
from config.logging.context import of_nobody

log = logging.getLogger("longhaul.dispatch")

NUDGE_SECONDS = 0.02
"""How long a dispatch waits after the end that made room: ends in this time share one."""


class Dispatcher:
    """Dispatches for workers, each after its responses end, for API processes, and for maintenance.

    Nudges lead to one dispatch at a time.

    It is the push. If one is lost, with its process or with Redis, maintenance finds what still waits, or what was
    marked as sent and not claimed.
    """

    def __init__(self, db: Database, queue: TaskQueue, ahead: Callable[[], Ahead] = Ahead) -> None:
        """`ahead` says what the worker of this process wants beyond its slots."""
        self._db = db
        self._queue = queue
        self._ahead = ahead
        self._corrections: dict[QueueFlow, FlowCorrection] = {}
        self._nudged: set[str] = set()
        self._may_have_released = False
        """Whether the next dispatch sends what was released, too."""
        self._task: asyncio.Task[None] | None = None

    def correct_flow(self, row: ResponseRow, used: int, seconds: float = 0.0, *, cut_short: bool) -> None:
        """Notes that a response has ended and took `used` tokens, and its last attempt so many seconds. The next
        dispatch corrects its flow.

        A response that was `cut_short`, by a cancel or an error, says nothing about the scale of its flow's estimates.
        If this process dies before, only the shares are a little off.
        """
        if row.charged is None:
            return
        refund = FlowCorrection(0, 0, row.charged - used, 0)
        correction = refund if cut_short else FlowCorrection(1, row.cost, row.charged, used, seconds)
        self._correct(QueueFlow(row.queue, row.project, row.priority), correction)

    def nudge(self, queue: str) -> None:
        """Dispatches from this queue, soon: a worker has room, or a foreground response waits, which may make room."""
        self._nudged.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="dispatch", context=of_nobody())

    def nudge_all(self, queue: str) -> None:
        """As `nudge`, and sends what was released, too: a worker has slots again for which it may have waited."""
        self._may_have_released = True
        self.nudge(queue)

    async def send_released(self) -> None:
        """Sends what was released, of all queues, but for suspects. Raises StoreUnavailable and QueueUnavailable."""
        while messages := await redelivery.take_released(self._db):
            log.info("sending %d released responses again", len(messages))
            await self._queue.enqueue(*messages)

    async def dispatch(self, queue: str) -> None:
        """Sends what waits in this queue and has room. Raises StoreUnavailable and QueueUnavailable."""
        while messages := await self._dispatch_once(queue):
            await self._queue.enqueue(*messages)

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    async def _dispatch_once(self, queue: str) -> Sequence[Message] | None:
        flows = [flow for flow in self._corrections if flow.queue == queue]
        corrections = {flow: self._corrections.pop(flow) for flow in flows}
        messages = None
        try:
            messages = await store.dispatch(self._db, queue, self._ahead(), corrections)
        finally:
            if messages is None:  # it did not make them
                for flow, correction in corrections.items():
                    self._correct(flow, correction)
        return messages

    def _correct(self, flow: QueueFlow, more: FlowCorrection) -> None:
        known = self._corrections.get(flow)
        self._corrections[flow] = more if known is None else known + more

    async def _work(self) -> None:
        while self._nudged:
            await asyncio.sleep(NUDGE_SECONDS)
            queue = self._nudged.pop()
            try:
                if self._may_have_released:
                    self._may_have_released = False
                    await self.send_released()
                await self.dispatch(queue)
            except (StoreUnavailable, QueueUnavailable) as error:
                log.debug("maintenance dispatches %s: %s", queue, error)
            except Exception as error:
                log.error("the dispatch of %s went wrong: %s", queue, type_and_places(error))
