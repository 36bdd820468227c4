"""Cancelling and deleting responses: Postgres decides, then readers and workers are told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial

from app.aio import BackgroundTasks
from app.announcer import Announcer
from app.batching import Batcher
from app.responses.read.reader import ResponseReader, Shown, no_such_response, shown
from app.sizes import is_large
from app.store.database import Database, StoreLocked, StoreUnavailable, retry_until_available
from app.store.responses import endings
from app.store.responses.lookup import Hold
from app.store.rows import EndResult
from config.logging.context import about

log = logging.getLogger("longhaul.api")

ABANDONED_AT_ONCE = 8
"""Abandoned responses that one process cancels at once."""


class ResponseCanceller:
    """Ends responses for their clients. Raises StoreUnavailable while Postgres cannot be reached."""

    def __init__(self, db: Database, announcer: Announcer, reader: ResponseReader) -> None:
        self._db = db
        self._announcer = announcer
        self._reader = reader
        self._cancels = Batcher(self._cancel_all, max_items=endings.MAX_CANCELLED, shared_errors=(StoreUnavailable,))
        self._turns = asyncio.Semaphore(ABANDONED_AT_ONCE)
        self._abandoned = BackgroundTasks()

    def abandon(self, response_id: str) -> None:
        """Cancels a response that no client waits for any more, as soon as Postgres can be reached: its client left, or
        nobody knows whether its insert was committed.

        Never fails and never waits: callers are in the middle of tearing a request down.
        """
        self._abandoned.start(self._cancel_in_turn(response_id))

    async def end_abandoned(self, seconds: float) -> None:
        """Waits up to `seconds` for the abandoned responses. Those that are left run to their end."""
        if left := await self._abandoned.close(seconds):
            log.warning("%d abandoned responses were not cancelled", left)

    async def _cancel_in_turn(self, response_id: str) -> None:
        async with self._turns:
            try:
                await retry_until_available(partial(self.cancel_abandoned, response_id))
            except Exception as error:
                with about(response_id):
                    log.error("abandoned, but not cancelled (%s)", type(error).__name__)

    async def close(self) -> None:
        """Ends the work in the background."""
        await self._cancels.close()

    async def cancel(self, project: str, response_id: str, hold: Hold) -> Shown:
        """Cancels a response. Returns it, cancelled or as it ended before; a large one once `hold` has room.

        Raises NotFound, also for a foreground response that is not stored: its client disconnects instead.
        """
        result = await self._cancel(project, response_id)
        if result is None:
            raise no_such_response(response_id)
        if not (is_large(result.size) or result.row.messages):
            return shown(result.row)
        del result
        return await self._reader.get(project, response_id, (), hold)

    async def delete(self, project: str, response_id: str) -> None:
        """Deletes a response and its events, and cancels it first if it is not final. Raises NotFound."""
        result = await endings.delete(self._db, project, response_id)
        if result is None:
            raise no_such_response(response_id)
        self._announcer.soon(result)

    async def cancel_abandoned(self, response_id: str) -> None:
        """Cancels a response whose client left; one that has ended or does not exist is left alone."""
        result = await endings.cancel(self._db, response_id, None)
        if result is not None and result.chunk is not None:
            with about(response_id, attempt=result.row.attempt, request_id=result.row.request_id):
                log.info("cancelled: its client left")
                await self._announcer.tell(result)

    async def _cancel(self, project: str, response_id: str) -> EndResult | None:
        """Together with others; once another transaction has left the row, alone."""
        result = await self._cancels.submit((project, response_id))
        if isinstance(result, StoreLocked):
            return await endings.cancel(self._db, response_id, project, self._announcer.soon, only_kept=True)
        if isinstance(result, StoreUnavailable):
            raise result
        return result

    async def _cancel_all(self, batch: Sequence[tuple[str, str]]) -> list[EndResult | StoreUnavailable | None]:
        """Cancels (project, response id), each project's responses in one statement. Announces what is committed."""
        results: dict[str, Iterator[EndResult | StoreUnavailable | None]] = {}
        for project in {project for project, _ in batch}:
            ids = [response_id for owner, response_id in batch if owner == project]
            cancelled = await endings.cancel_all(self._db, ids, project, self._announcer.soon, only_kept=True)
            results[project] = iter(cancelled)
        return [next(results[project]) for project, _ in batch]
