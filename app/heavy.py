"""Heavy work beside the event loop, which would hold up everybody's tokens and requests on it.

A worker's thread takes the interpreter for a millisecond at a time (`SWITCH_SECONDS`, workers/worker.py).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from app.bounds import Bound
from app.sizes import is_large

T = TypeVar("T")

PROJECT: ContextVar[str | None] = ContextVar("project", default=None)
"""The project of the running task: heavy work takes turns by it. The API sets it for a request, a worker for a run."""


class Threads:
    """Threads for heavy work. The event loop goes on meanwhile; work that finds no free thread waits in line.

    Projects take turns, so a single piece of one never waits behind all of another's. The threads bound memory as
    well: Python would run more work in turns, and each piece holds its memory to its end. Work whose caller was
    cancelled keeps its thread, because nothing can stop it.
    """

    def __init__(self, name: str, count: int = 1) -> None:
        self._executor = ThreadPoolExecutor(count, name)
        self.bound = Bound(f"threads for {name} work", count, shares=False)

    async def run(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns."""
        run = partial(contextvars.copy_context().run, work)
        return await behind([self.bound], partial(self._run, run))

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


HEAVY = Threads("heavy", 2)
"""Threads of this process for work of milliseconds and more."""
ONE_AT_A_TIME = Threads("large slow")
"""Threads for work that takes seconds and a lot of memory, so that other heavy work has threads besides."""


async def off_loop(work: Callable[[], T], size: int = 0, items: int = 0, *, slow: bool = False) -> T:
    """The door to heavy work: runs `work` in a thread if its bytes or items make it large, else on the loop.

    Returns what `work` returns. `slow` work takes milliseconds however small it is: it always has a thread, and large
    pieces of it run one after the other.
    """
    large = is_large(size, items)
    if not (large or slow):
        return work()
    return await (ONE_AT_A_TIME if large and slow else HEAVY).run(work)


async def behind(bounds: Sequence[Bound], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Takes one of each of the bounds, in this order and projects in turns, and runs `work`, which has its own threads.

    If the caller is cancelled, the work goes on and keeps what it took: nothing can stop a thread.
    """
    with ExitStack() as held:
        for bound in bounds:
            held.enter_context(await bound.wait(PROJECT.get()))
        task = asyncio.ensure_future(work())
        task.add_done_callback(partial(_leave, held.pop_all()))
    return await asyncio.shield(task)


def _leave(held: ExitStack, task: asyncio.Task[Any]) -> None:
    held.close()
    if not task.cancelled():
        task.exception()  # else asyncio would report it if the caller is gone
