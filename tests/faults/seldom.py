"""For what is long in coming: a look at it costs the machine that it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.2


def seldom(check: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
    """The same check, which takes its time to say no."""

    async def look() -> T:
        if not (found := await check()):
            await asyncio.sleep(PAUSE_SECONDS)
        return found

    return look
