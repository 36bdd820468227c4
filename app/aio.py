"""Small tools for asyncio: heavy work in threads; tasks to end, race, shield, and keep in the background."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

log = logging.getLogger("longhaul.aio")

RECANCEL_SECONDS = 0.2

T = TypeVar("T")


class Threads:
    """Threads for heavy work. The event loop goes on meanwhile; work that finds no free thread waits in line.

    They bound memory as well: Python would run more work in turns, and each piece holds its memory to its end. Work
    whose caller was cancelled keeps its thread, because nothing can stop it.
    """

    def __init__(self, name: str, count: int = 1) -> None:
        self._executor = ThreadPoolExecutor(count, name)

    async def run(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns."""
        run = partial(contextvars.copy_context().run, work)
        return await asyncio.get_running_loop().run_in_executor(self._executor, run)


HEAVY = Threads("heavy", 2)
"""Of this process: for work of milliseconds and more."""
HEAVIEST = Threads("heaviest")
"""Of this process: for work that takes seconds and a lot of memory, so that other heavy work has threads besides."""


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancels the tasks until they are done, and discards what they raised.

    One cancellation is not enough: redis-py 8.1 swallows a CancelledError that reaches it while it connects or sends.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=RECANCEL_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_until(work: Coroutine[Any, Any, None], *signals: Awaitable[None]) -> bool:
    """Runs `work` until it is done, or cancels it as soon as one of the signals is done.

    Returns whether the work was done first. It always returns after the work has ended, even if it is cancelled itself.
    Raises what the work raises.
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
    """Awaits `work` to its end, even if the caller is cancelled meanwhile; for clean-ups that must not be cut short."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    try:
        return task.result()
    finally:
        # The task refers to its exception, and the exception to this frame: this line breaks the reference cycle.
        del task


async def behind(gates: Sequence[asyncio.Semaphore], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Passes the gates in this order, and runs `work`, which has threads of its own (`Threads`: work that has none).

    If the caller is cancelled, the work goes on and keeps its places: nothing can stop a thread.
    """
    passed: list[asyncio.Semaphore] = []
    try:
        for gate in gates:
            await gate.acquire()
            passed.append(gate)
        task = asyncio.ensure_future(work())
    except BaseException:
        _release(passed)
        raise

    def leave(task: asyncio.Task[T]) -> None:
        _release(passed)
        if not task.cancelled():
            task.exception()  # else asyncio would report it if the caller is gone

    task.add_done_callback(leave)
    return await asyncio.shield(task)


def _release(gates: Sequence[asyncio.Semaphore]) -> None:
    for gate in gates:
        gate.release()


class BackgroundTasks:
    """Tasks that outlive the code that started them. Keeps a reference to each task until it ends.

    `on_error` gets the error of a task that failed. Without it, the type is logged: the text may hold a prompt.
    """

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_error = on_error or _log_type

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        """The tasks that still run."""
        return iter(list(self._tasks))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` in a task of its own."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    async def close(self, seconds: float) -> None:
        """Waits up to `seconds` for the running tasks, and then cancels them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)


def _log_type(error: BaseException) -> None:
    log.warning("a background task failed: %s", type(error).__name__)
