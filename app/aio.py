"""Ending asyncio tasks for sure."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_SECONDS = 0.2


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancels the tasks until they are done, and forgets what they raised.

    Once is not enough: redis-py 8.1 swallows a CancelledError that reaches it while it connects or sends.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
