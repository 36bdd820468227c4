"""Small tools for asyncio: tasks to end, race, shield, and keep in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

log = logging.getLogger("longhaul.aio")

RECANCEL_SECONDS = 1.0
"""Long enough for a clean-up that awaits, such as the end of a transaction: the next cancellation interrupts it."""

T = TypeVar("T")


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


async def run_until(work: Coroutine[Any, Any, object], *signals: Coroutine[Any, Any, object]) -> bool:
    """Runs `work` until it is done, or cancels it as soon as one of the signals is done.

    Returns whether the work was done first. It always returns after the work has ended, even if it is cancelled itself,
    and more than once. Raises what the work raises.
    """
    cancelled = _cancellations()
    working = asyncio.create_task(work)
    watching = [asyncio.create_task(signal) for signal in signals]
    try:
        await asyncio.wait([working, *watching], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = False
        while not ended:
            with contextlib.suppress(asyncio.CancelledError):  # The next round passes it on.
                await end_tasks(working, *watching)
                ended = True
    if _cancellations() > cancelled:  # While the tasks were ended.
        raise asyncio.CancelledError
    if working.cancelled():
        return False
    working.result()
    return True


def _cancellations() -> int:
    """How often the running task was cancelled. A frame that kept the task would make a reference cycle."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


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


class Turns:
    """Lets a project do one piece of its work in each turn of the loop: whatever else is ready goes between two.

    Pieces that come one by one do not wait.
    """

    def __init__(self) -> None:
        self._lines: dict[str | None, deque[asyncio.Future[None]]] = {}
        """The waiters of each project that has had its piece of this turn."""

    async def take(self, project: str | None) -> None:
        """Returns when the caller may go on, which it does until it waits for something else."""
        loop = asyncio.get_running_loop()
        if (line := self._lines.get(project)) is None:
            if not self._lines:
                loop.call_soon(self._next)
            self._lines[project] = deque()
            return
        line.append(turn := loop.create_future())
        await turn

    def _next(self) -> None:
        for project, line in list(self._lines.items()):
            while line and line[0].done():  # Its task was cancelled.
                line.popleft()
            if line:
                line.popleft().set_result(None)
            else:
                del self._lines[project]
        if self._lines:
            asyncio.get_running_loop().call_soon(self._next)


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

    async def close(self, seconds: float) -> int:
        """Waits up to `seconds` for the running tasks, and then cancels them; returns how many it cancels."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        left = list(self._tasks)
        await end_tasks(*left)
        return len(left)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)


def _log_type(error: BaseException) -> None:
    log.warning("a background task failed: %s", type(error).__name__)
