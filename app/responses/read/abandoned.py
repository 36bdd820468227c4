"""Responses that no client waits for any more: each is cancelled as soon as Postgres can be reached.

They are foreground responses whose client left, and inserts that may or may not have been committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from app.store.database import StoreUnavailable

log = logging.getLogger("longhaul.api")

MAX_BATCH = 8
RETRY_SECONDS = 0.5


class AbandonedResponses:
    """Calls `cancel(response_id)` for each abandoned response, and retries while it raises StoreUnavailable."""

    def __init__(self, cancel: Callable[[str], Awaitable[None]]) -> None:
        self._cancel = cancel
        self._pending: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, response_id: str) -> None:
        """Never fails and never waits: callers are in the middle of tearing a request down."""
        self._pending[response_id] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="abandoned responses")

    async def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the pending cancellations. Responses that are left run to their end."""
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=seconds)
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._pending:
            log.warning("%d abandoned responses were not cancelled", len(self._pending))

    async def _run(self) -> None:
        while batch := list(self._pending)[:MAX_BATCH]:
            if not all(await asyncio.gather(*map(self._try, batch))):
                await asyncio.sleep(RETRY_SECONDS)

    async def _try(self, response_id: str) -> bool:
        """Returns False if it has to be retried."""
        try:
            await self._cancel(response_id)
        except StoreUnavailable:
            return False
        except Exception as error:
            log.error("%s: abandoned, but not cancelled (%s)", response_id, type(error).__name__)
        self._pending.pop(response_id, None)
        return True
