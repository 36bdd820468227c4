"""Work that lasts only as long as somebody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any

from starlette.types import Receive


async def disconnected(receive: Receive) -> None:
    """Returns when the client is gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _outcome(signal: Awaitable[None]) -> None:
    await signal


async def work_until(work: Coroutine[Any, Any, None], *signals: Awaitable[None]) -> bool:
    """Runs `work` until it is done (True), or until one of `signals` comes (False): then it is cancelled.

    Returns, or is cancelled itself, only after `work` has ended. Raises what `work` raises.
    """
    working = asyncio.create_task(work)
    watching = [asyncio.create_task(_outcome(signal)) for signal in signals]
    try:
        await asyncio.wait([working, *watching], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, *watching):
            task.cancel()
        await asyncio.wait([working, *watching])
    if working.cancelled():
        return False
    working.result()
    return True
