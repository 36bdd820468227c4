"""Cancelling and deleting responses: Postgres decides, then readers and workers are notified."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from app.aio import BackgroundTasks
from app.batching import Batcher
from app.protocol.errors import InvalidRequest
from app.queue.publisher import TaskQueue
from app.responses.ids import may_exist
from app.responses.read.reader import ResponseReader, Shown, no_such_response, shown
from app.sizes import is_large
from app.store.database import Database, StoreUnavailable
from app.store.responses import endings
from app.store.responses.lookup import Hold
from app.store.rows import EndResult
from app.streaming.pubsub import PubSub

log = logging.getLogger("longhaul.api")

CLOSE_SECONDS = 2.0


class ResponseCanceller:
    """Ends responses for their clients. Raises StoreUnavailable while Postgres cannot be reached."""

    def __init__(self, db: Database, pubsub: PubSub, queue: TaskQueue, reader: ResponseReader) -> None:
        self._db = db
        self._pubsub = pubsub
        self._queue = queue
        self._reader = reader
        self._notices = BackgroundTasks()
        self._cancels = Batcher(self._cancel_all, max_items=endings.MAX_CANCELLED, shared_errors=(StoreUnavailable,))

    async def close(self) -> None:
        """Ends the work in the background, within a few seconds."""
        await self._cancels.close()
        await self._notices.close(CLOSE_SECONDS)

    async def cancel(self, project: str, response_id: str, hold: Hold) -> Shown:
        """Cancels a background response. Returns it, cancelled or as it ended before; a large one once `hold` has room.

        Raises NotFound, and InvalidRequest for a foreground response: its client disconnects instead.
        """
        result = await self._cancels.submit((project, response_id)) if may_exist(response_id) else None
        if result is None:
            await self._reader.row(project, response_id)
            message = "Only a response that was created with 'background' true can be cancelled."
            raise InvalidRequest(message, code="response_not_cancellable")
        self._notices.start(self._notify(result))
        if not (is_large(result.size) or result.row.messages):
            return shown(result.row)
        del result
        return await self._reader.get(project, response_id, (), hold)

    async def delete(self, project: str, response_id: str) -> None:
        """Deletes a response and its events, and cancels it first if it is not final. Raises NotFound."""
        result = await endings.delete(self._db, project, response_id) if may_exist(response_id) else None
        if result is None:
            raise no_such_response(response_id)
        self._notices.start(self._notify(result))

    async def cancel_abandoned(self, response_id: str) -> None:
        """Cancels a response whose client left; one that has ended or does not exist is left alone."""
        result = await endings.cancel(self._db, response_id, None)
        if result is not None and result.chunk is not None:
            log.info("%s: cancelled, its client left", response_id)
            await self._notify(result)

    async def _cancel_all(self, batch: Sequence[tuple[str, str]]) -> list[EndResult | None]:
        """Cancels (project, response id), each project's responses in one statement."""
        results: dict[str, Iterator[EndResult | None]] = {}
        for project in {project for project, _ in batch}:
            ids = [response_id for owner, response_id in batch if owner == project]
            results[project] = iter(await endings.cancel_all(self._db, ids, project, only_background=True))
        return [next(results[project]) for project, _ in batch]

    async def _notify(self, result: EndResult) -> None:
        """Publishes an end to readers and workers. If that fails, both find it in Postgres."""
        if result.chunk is None:
            return
        await self._pubsub.publish([result.chunk])
        if result.row.sent_at is not None or result.row.attempt:  # else no worker has heard of it
            await self._queue.revoke(result.row.id)
