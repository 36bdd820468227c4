"""Small tools for asyncio tasks: end them, race them, keep them in the background, let nothing interrupt them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Coroutine, Iterator
from typing import Any, TypeVar

log = logging.getLogger("longhaul.aio")

CANCEL_AGAIN_SECONDS = 0.2

T = TypeVar("T")


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancels the tasks until they are done, and discards what they raised.

    One cancellation is not enough: redis-py 8.1 swallows a CancelledError that reaches it while it connects or sends.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_until(work: Coroutine[Any, Any, None], *signals: Awaitable[None]) -> bool:
    """Runs `work` until it is done, or until one of the signals comes.

    Returns True if the work is done, and False if a signal came first: then the work is cancelled. In every case,
    its own cancellation included, it returns only after the work has ended. Raises what the work raises.
    """
    working = asyncio.create_task(work)
    watching = [asyncio.create_task(_wait_for(signal)) for signal in signals]
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


async def _wait_for(signal: Awaitable[None]) -> None:
    await signal


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work` to its end, even if the caller is cancelled meanwhile: a clean-up must not stop half way."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    try:
        return task.result()
    finally:
        # The task holds its exception, and the exception holds this frame: without this line that is a circle.
        del task


class BackgroundTasks:
    """Tasks that outlive the request that started them. A reference to each is kept until it ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        """The tasks that still run."""
        return iter(list(self._tasks))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` in a task of its own. A failure is logged by its type alone: the text may hold a prompt."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    async def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the running tasks, and cancels the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a background task failed: %s", type(error).__name__)
