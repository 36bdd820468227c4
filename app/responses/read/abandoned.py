"""Responses that no client waits for any more: each is cancelled as soon as Postgres can be reached.

They are foreground responses whose client left, and inserts that may or may not have been committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from app.aio import BackgroundTasks
from app.store.database import retry_until_available
from config.logging.context import about

log = logging.getLogger("longhaul.api")

CANCELS_AT_ONCE = 8


class AbandonedResponses:
    """Calls `cancel(response_id)` for each abandoned response, and repeats it until Postgres is available."""

    def __init__(self, cancel: Callable[[str], Awaitable[None]]) -> None:
        self._cancel = cancel
        self._turns = asyncio.Semaphore(CANCELS_AT_ONCE)
        self._tasks = BackgroundTasks()

    def add(self, response_id: str) -> None:
        """Never fails and never waits: callers are in the middle of tearing a request down."""
        self._tasks.start(self._cancel_in_turn(response_id))

    async def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the pending cancellations. Responses that are left run to their end."""
        if left := await self._tasks.close(seconds):
            log.warning("%d abandoned responses were not cancelled", left)

    async def _cancel_in_turn(self, response_id: str) -> None:
        async with self._turns:
            try:
                await retry_until_available(partial(self._cancel, response_id))
            except Exception as error:
                with about(response_id):
                    log.error("abandoned, but not cancelled (%s)", type(error).__name__)
