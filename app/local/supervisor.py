"""Keeps programs alive, and knows when that is hopeless.

    start -> running -> (asked to stop) stop signal, grace, SIGKILL -> done
                     -> (ended by itself) pause, then start again; or broken

Broken: it ended with the status of a wrong configuration, or it failed `HOPELESS` times in a row, each time
soon after its start and with the same status. A death by SIGKILL or SIGTERM is somebody's doing (an operator,
the kernel's memory killer) and never counts as a failure of its own.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from app.local.children import Child
from app.local.errors import LocalError

CONFIG_STATUSES = frozenset({2, 78, 126, 127})
"""Exit statuses that another try does not change: usage (2, as Click has it), EX_CONFIG of sysexits.h (78),
a program that cannot be run or is not there (126, 127, of the shell)."""
NOT_ITS_FAULT = frozenset({0, -signal.SIGKILL, -signal.SIGTERM})
HOPELESS = 5
SOON_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0

Say = Callable[[str], None]
T = TypeVar("T")


class Stopped(Exception):
    """We were asked to stop while still starting."""


class Stopping:
    """Says when to stop, and why where something failed. `urgent` is set where grace is over."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._urgent = asyncio.Event()
        self.reason: str | None = None

    def __bool__(self) -> bool:
        return self._asked.is_set()

    def set(self) -> None:
        self._asked.set()

    def hurry(self) -> None:
        """Ends everything without grace."""
        self._asked.set()
        self._urgent.set()

    def failed(self, reason: str) -> None:
        """Stops because of `reason`; the first one counts."""
        self.reason = self.reason or reason
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()

    async def wait_urgent(self) -> None:
        await self._urgent.wait()


@dataclass(slots=True)
class Record:
    """What is known of a program's deaths in a row."""

    status: int | None = None
    failures: int = 0
    deaths: int = 0

    def died(self, status: int, lifetime: float) -> None:
        """Notes a death after `lifetime` seconds."""
        soon = lifetime < SOON_SECONDS
        failed = soon and status not in NOT_ITS_FAULT
        self.failures = (self.failures + 1 if status == self.status else 1) if failed else 0
        self.deaths = self.deaths + 1 if soon else 1
        self.status = status

    @property
    def broken(self) -> bool:
        return self.status in CONFIG_STATUSES or self.failures >= HOPELESS

    @property
    def pause(self) -> float:
        """Seconds until the next start."""
        return float(min(FIRST_PAUSE_SECONDS * 2 ** (self.deaths - 1), LONGEST_PAUSE_SECONDS))


async def keep(
    start: Callable[[], Awaitable[Child]], stopping: Stopping, say: Say, first: Child | None = None
) -> str | None:
    """Keeps one program running until `stopping`; returns None, or why it is broken (one line)."""
    record = Record()
    child = first
    while child is not None or not stopping:
        began = time.monotonic()
        try:
            child = child or await start()
            status, last = await _end_of(child, stopping), child.last_line
        except LocalError as error:
            status, last = 1, str(error)
        child = None
        if stopping:
            break
        record.died(status, time.monotonic() - began)
        if record.broken:
            return f"ended with {describe(status)}: {last}" if last else f"ended with {describe(status)}"
        say(f"ended with {describe(status)}; starting again in {record.pause:g} s")
        await first_of(stopping.wait(), asyncio.sleep(record.pause))
    return None


async def keep_all(programs: Iterable[tuple[str, Callable[[], Awaitable[Child]], Say]], stopping: Stopping) -> None:
    """Keeps (name, start, say) each; one that is broken stops all. Returns when every one has ended."""

    async def guard(name: str, start: Callable[[], Awaitable[Child]], say: Say) -> None:
        if (reason := await keep(start, stopping, say)) is not None:
            stopping.failed(f"{name} {reason}")

    async with asyncio.TaskGroup() as group:
        for name, start, say in programs:
            group.create_task(guard(name, start, say))


async def _end_of(child: Child, stopping: Stopping) -> int:
    """Waits for the end, asked for or not."""
    await first_of(child.wait(), stopping.wait())
    if stopping:
        child.stop()
        await first_of(child.wait(), stopping.wait_urgent())
        child.kill()
    return await child.wait()


async def first_of(*waits: Awaitable[object]) -> None:
    """Returns when one of them has ended; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unless(stopping: Stopping, work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`; cancels it and raises Stopped where we are asked to stop before it has ended."""
    if stopping:
        work.close()
        raise Stopped
    task = asyncio.create_task(work)
    await first_of(asyncio.wait({task}), stopping.wait())
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise Stopped
    return task.result()


def describe(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
