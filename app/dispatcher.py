"""Dispatching: sending what waits in Postgres as soon as Redis has room for it (app/store/queue/dispatch.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

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

WINDOW_SECONDS = 1.0
"""A window holds what ends in this time: several times what it takes from a dispatch to a claim on a busy machine.
A longer window would make new responses wait longer."""
NUDGE_SECONDS = 0.02
"""How long a dispatch waits after the claim that made room: claims in this time share one, and the first token of a
response that comes alone does not wait behind it."""


class Dispatcher:
    """Dispatches for workers, each after its claims, for API processes, and for maintenance.

    One dispatch runs at a time in each process.

    It is the push. If one is lost, with its process or with Redis, maintenance finds what still waits, or what was
    marked as sent and never arrived.
    """

    def __init__(
        self, db: Database, queue: TaskQueue, window: int, ended_within: Callable[[float], int] = lambda _: 0
    ) -> None:
        """`window`: see `Settings.queue_window`. `ended_within`: of the responses that end in this process (`Pace`)."""
        self._db = db
        self._queue = queue
        self._window = window
        self._ended_within = ended_within
        self._corrections: dict[Flow, FlowCorrection] = {}
        self._nudged: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def correct_flow(self, row: ResponseRow, used: int, *, cut_short: bool) -> None:
        """Notes that a response has ended and took `used` tokens. The next dispatch corrects its flow.

        A response that was `cut_short`, by a cancel or an error, says nothing about the scale of its flow's estimates.
        If this process dies before, only the shares are a little off.
        """
        if row.charged is None:
            return
        refund = FlowCorrection(0, 0, row.charged - used, 0)
        correction = refund if cut_short else FlowCorrection(1, row.cost, row.charged, used)
        self._correct(Flow(row.queue, row.project, row.priority), correction)

    def nudge(self, queue: str) -> None:
        """Dispatches from this queue, soon: there is room, or a foreground response waits, which may make room."""
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

    async def send_released(self, message: Message) -> None:
        """Sends the message of a response that was released just now, beside the window."""
        try:
            await self._queue.enqueue(message)
        except QueueUnavailable:
            log.info("%s released; maintenance will send its message", message.response_id)

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
        window = max(self._window, self._ended_within(WINDOW_SECONDS))
        messages = None
        try:
            messages = await store.dispatch(self._db, queue, window, corrections)
        finally:
            if messages is None:  # it did not make them
                for flow, correction in corrections.items():
                    self._correct(flow, correction)
        return messages

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
