"""Dispatching: sending what waits in Postgres as soon as Redis has room for it (app/store/queue/dispatch.py)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from app.aio import end_tasks
from app.protocol.text import type_and_places
from app.queue.message import Message
from app.queue.publisher import QueueUnavailable, TaskQueue
from app.store.database import Database, StoreUnavailable
from app.store.queue import dispatch as store
from app.store.queue import redelivery
from app.store.queue.dispatch import Flow, FlowCorrection
from app.store.rows import ResponseRow

log = logging.getLogger("longhaul.dispatch")

PACE_SECONDS = 1.0
"""A window holds what ends in this time: several times what it takes from a dispatch to a claim on a busy machine."""
NUDGE_SECONDS = 0.02
"""How long a dispatch waits after the claim that made room: claims in this time share one, and the first token of a
response that comes alone does not wait behind it."""
MAX_ENDS = 4096


class Dispatcher:
    """Dispatches for workers, each after its claims, and for maintenance. One dispatch at a time in each process.

    It is the push. If one is lost, with its process or with Redis, maintenance finds what still waits, or what was
    marked as sent and never arrived.
    """

    def __init__(self, db: Database, queue: TaskQueue, window: int, clock: Callable[[], float] = monotonic) -> None:
        """`window`: see `Settings.queue_window`."""
        self._db = db
        self._queue = queue
        self._window = window
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=MAX_ENDS)
        self._corrections: dict[Flow, FlowCorrection] = {}
        self._nudged: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def correct_flow(self, row: ResponseRow, used: int) -> None:
        """Notes that a response has ended and took `used` tokens. The next dispatch corrects its flow.

        If this process dies before, only the shares are a little off.
        """
        self._ends.append(self._clock())
        if row.charged is not None:
            correction = FlowCorrection(1, row.cost, row.charged, used)
            self._correct(Flow(row.queue, row.project, row.priority), correction)

    def nudge(self, queue: str) -> None:
        """Dispatches from this queue, soon: there is room."""
        self._nudged.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="dispatch")

    async def dispatch(self, queue: str) -> None:
        """Sends what waits in this queue and has room. Raises StoreUnavailable and QueueUnavailable."""
        while messages := await self._dispatch_once(queue):
            if await self._queue.is_marked(queue):
                await self._queue.enqueue(*messages)
            else:
                await self._restore(queue)

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    async def _restore(self, queue: str) -> None:
        """Redis has lost its keys: what was sent waits again, so that it comes before what was behind it."""
        lost = 0
        while count := await redelivery.put_all_back(self._db, queue):
            lost += count
        log.info("Redis has nothing of %s; %d responses wait again", queue, lost)
        await self._queue.mark(queue)

    async def _dispatch_once(self, queue: str) -> Sequence[Message] | None:
        flows = [flow for flow in self._corrections if flow.queue == queue]
        corrections = {flow: self._corrections.pop(flow) for flow in flows}
        messages = None
        try:
            messages = await store.dispatch(self._db, queue, self._window_now(), corrections)
        finally:
            if messages is None:  # it did not make them
                for flow, correction in corrections.items():
                    self._correct(flow, correction)
        return messages

    def _window_now(self) -> int:
        """Returns the window that feeds a worker whose responses end as they did of late."""
        oldest = self._clock() - PACE_SECONDS
        while self._ends and self._ends[0] < oldest:
            self._ends.popleft()
        return max(self._window, len(self._ends))

    def _correct(self, flow: Flow, more: FlowCorrection) -> None:
        known = self._corrections.get(flow)
        self._corrections[flow] = more if known is None else known + more

    async def _work(self) -> None:
        while self._nudged:
            await asyncio.sleep(NUDGE_SECONDS)
            queue = self._nudged.pop()
            try:
                await self.dispatch(queue)
            except (StoreUnavailable, QueueUnavailable) as error:
                log.debug("maintenance dispatches %s: %s", queue, error)
            except Exception as error:
                log.error("the dispatch of %s went wrong: %s", queue, type_and_places(error))
