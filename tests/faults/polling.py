"""Slower polling, for conditions that take long: every check costs CPU on the machine that is being tested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.2


def with_pause(check: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
    """The same check, with a pause before it returns something false."""

    async def check_and_pause() -> T:
        if not (found := await check()):
            await asyncio.sleep(PAUSE_SECONDS)
        return found

    return check_and_pause
