"""Responses that nobody waits for any more: each is cancelled, as soon as Postgres lets it.

Foreground responses whose client left, and inserts of which nobody knows whether they took effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from app.store.database import StoreUnavailable

log = logging.getLogger("longhaul.api")

AT_ONCE = 8
PAUSE_SECONDS = 0.5


class AbandonedResponses:
    """Cancels by `cancel(response_id)`, which raises StoreUnavailable where it has to be tried again."""

    def __init__(self, cancel: Callable[[str], Awaitable[None]]) -> None:
        self._cancel = cancel
        self._waiting: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, response_id: str) -> None:
        """Never fails and never waits: it is called while a request is being torn down."""
        self._waiting[response_id] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="orphans")

    async def close(self, seconds: float) -> None:
        """Waits that long for what is left, and gives up on the rest: maintenance and workers end it."""
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=seconds)
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._waiting:
            log.warning("%d abandoned responses were not cancelled", len(self._waiting))

    async def _run(self) -> None:
        while batch := list(self._waiting)[:AT_ONCE]:
            if not all(await asyncio.gather(*map(self._try, batch))):
                await asyncio.sleep(PAUSE_SECONDS)

    async def _try(self, response_id: str) -> bool:
        try:
            await self._cancel(response_id)
        except StoreUnavailable:
            return False
        except Exception as error:
            log.error("%s: abandoned, but not cancelled (%s)", response_id, type(error).__name__)
        self._waiting.pop(response_id, None)
        return True
