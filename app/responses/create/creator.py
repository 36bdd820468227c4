"""Inserting new responses, and sending their messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from app.access.charges import left
from app.aio import BackgroundTasks
from app.dispatcher import Dispatcher
from app.protocol.errors import ApiError, KeyReused, LimitReached, ModelPaused
from app.protocol.limits import Allowance
from app.queue.message import FOREGROUND, Message
from app.queue.publisher import QueueUnavailable, TaskQueue
from app.scheduling.decisions import Sending
from app.store.database import Database, StoreUnavailable
from app.store.responses import lookup
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import NewResponse
from app.store.rows import Idempotency, ResponseFlags

log = logging.getLogger("longhaul.api")


class ResponseCreator:
    """Inserts a response, and sends its message if it does not wait, in tasks that outlive the request.

    If a foreground response waits, or one that nobody else waits before, its queue is dispatched.

    `abandon` is called with the id of a response that no client can know of.
    """

    def __init__(
        self,
        db: Database,
        queue: TaskQueue,
        dispatcher: Dispatcher,
        background: BackgroundTasks,
        abandon: Callable[[str], None],
    ) -> None:
        self._db = db
        self._queue = queue
        self._dispatcher = dispatcher
        self._background = background
        self._abandon = abandon
        self._inserter = Inserter(db, self._start_sending)

    async def close(self) -> None:
        await self._inserter.close()
        await self._dispatcher.close()

    async def find_repeated(self, project: str, idempotency: Idempotency | None) -> ResponseFlags | None:
        """Returns the response of an earlier request with this key. Raises InvalidRequest if its body was another."""
        if idempotency is None:
            return None
        existing = await lookup.get_by_key(self._db, project, idempotency.key)
        if existing is not None:
            _check_same_body(existing, idempotency)
        return existing

    async def insert(self, row: NewResponse) -> ResponseFlags | Allowance | None:
        """Inserts the row and returns what its project's limits leave, or None without limits that concern it.

        Returns the response that its key has already: then nothing is inserted. If the caller leaves, or nobody knows
        whether the insert was committed, the response is abandoned. With a key it is not: its client can repeat the
        request. Raises StoreUnavailable, LimitReached, ModelPaused, and InvalidRequest as `find_repeated`.
        """
        inserting = self._background.start(self._create(row))
        try:
            result = await asyncio.shield(inserting)
        except asyncio.CancelledError:
            if row.idempotency is None:
                inserting.add_done_callback(lambda _: self._abandon(row.id))
            raise
        except StoreUnavailable:
            if row.idempotency is None:
                self._abandon(row.id)
            raise
        if isinstance(result, ApiError):
            raise result
        if isinstance(result, ResponseFlags):
            _check_same_body(result, row.idempotency)
        return left() if result is None else result

    async def _create(self, row: NewResponse) -> ResponseFlags | Allowance | ApiError | None:
        try:
            return await self._inserter.create(row)
        except (
            LimitReached,
            ModelPaused,
        ) as refused:  # Raised here, they would be logged as failures.
            return refused

    def _start_sending(self, row: NewResponse, sending: Sending) -> None:
        if not sending.at_once:
            if sending.is_first or row.priority in FOREGROUND:  # what runs may yield to the foreground
                self._dispatcher.nudge(row.queue)
            return
        message = replace(Message.of(row), sent_to=sending.sent_to, foreground_place=sending.foreground_place)
        self._background.start(self._send(message))

    async def _send(self, message: Message) -> None:
        try:
            await self._queue.enqueue(message)
        except QueueUnavailable as error:
            log.debug("the message was not sent (%s)", error)  # the queue has warned of the whole batch


def _check_same_body(existing: ResponseFlags, idempotency: Idempotency | None) -> None:
    if idempotency is None or existing.fingerprint != idempotency.fingerprint:
        raise KeyReused
