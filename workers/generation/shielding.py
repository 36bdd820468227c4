"""Work that nothing interrupts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work` to its end, whoever cancels the caller meanwhile: half a clean-up is none."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    try:
        return task.result()
    finally:
        del task  # which holds what it raised, which holds this frame: a circle
