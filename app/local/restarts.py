"""Restarts programs that end, and gives up on those that cannot run.

    start -> running -> (shutdown) drain, stop signal, grace, SIGKILL -> done
                     -> (ended by itself) delay, then start; or broken

A program is broken if it ended with the status of a wrong configuration. It is also broken if it failed `MAX_FAILURES`
times in a row with the same status, each time soon after its start. SIGKILL and SIGTERM come from outside (an operator,
the kernel's out-of-memory killer) and never count as failures.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from app.aio import run_until
from app.local.children import Child
from app.local.errors import LocalError

CONFIG_STATUSES = frozenset({2, 78, 126, 127})
"""Exit statuses that a restart does not change: wrong usage (2, as in Click), EX_CONFIG of sysexits.h (78),
and a program that cannot be run or does not exist (126 and 127, as in the shell)."""
NO_FAILURE_STATUSES = frozenset({0, -signal.SIGKILL, -signal.SIGTERM})
MAX_FAILURES = 5
SHORT_LIFE_SECONDS = 60.0
MIN_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0
QUIET_SECONDS = 1.0
"""How long a program may drain before the log says so."""

Log = Callable[[str], None]
T = TypeVar("T")


class Stopped(Exception):
    """Longhaul was asked to stop while it was still starting."""


class StopRequest:
    """Whether Longhaul is to stop, and why if something failed."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._immediate = asyncio.Event()
        self._parts: list[StopRequest] = []
        self.reason: str | None = None

    def __bool__(self) -> bool:
        return self._requested.is_set()

    def part(self) -> StopRequest:
        """A request for one program alone. This one sets it, too."""
        part = StopRequest()
        self._parts.append(part)
        if self:
            part.set()
        return part

    def set(self) -> None:
        self._requested.set()
        for part in self._parts:
            part.set()

    def set_immediate(self) -> None:
        """Stops everything without grace."""
        self.set()
        self._immediate.set()
        for part in self._parts:
            part.set_immediate()

    def fail(self, reason: str) -> None:
        """Stops everything because of `reason`; the first reason counts."""
        self.reason = self.reason or reason
        self.set()

    async def wait(self) -> None:
        await self._requested.wait()

    async def wait_immediate(self) -> None:
        await self._immediate.wait()


@dataclass(frozen=True, slots=True)
class Supervised:
    """A program to keep running. It may drain for `drain_seconds` before the grace of its stop begins."""

    start: Callable[[], Awaitable[Child]]
    log: Log
    drain_seconds: float = 0.0


@dataclass(slots=True)
class DeathRecord:
    """How often a program has died in a row, and how."""

    status: int | None = None
    failures: int = 0
    deaths: int = 0

    def died(self, status: int, lifetime: float) -> None:
        """Records a death after `lifetime` seconds."""
        soon = lifetime < SHORT_LIFE_SECONDS
        failed = soon and status not in NO_FAILURE_STATUSES
        self.failures = (self.failures + 1 if status == self.status else 1) if failed else 0
        self.deaths = self.deaths + 1 if soon else 1
        self.status = status

    @property
    def broken(self) -> bool:
        return self.status in CONFIG_STATUSES or self.failures >= MAX_FAILURES

    @property
    def delay(self) -> float:
        """Seconds until the restart: none after the first death, for clients are waiting."""
        return float(min(MIN_DELAY_SECONDS * 2 ** (self.deaths - 2), MAX_DELAY_SECONDS)) if self.deaths > 1 else 0.0


async def supervise(program: Supervised, stopping: StopRequest, first: Child | None = None) -> str | None:
    """Keeps one program running until `stopping`; returns None, or why the program is broken (one line)."""
    record = DeathRecord()
    child = first
    while child is not None or not stopping:
        began = time.monotonic()
        try:
            child = child or await program.start()
            status, last = await _end_of(child, program, stopping), child.last_line
        except LocalError as error:
            status, last = 1, str(error)
        child = None
        if stopping:
            break
        record.died(status, time.monotonic() - began)
        if record.broken:
            return f"ended with {describe(status)}: {last}" if last else f"ended with {describe(status)}"
        program.log(f"ended with {describe(status)}; starting again in {record.delay:g} s")
        await run_until(asyncio.sleep(record.delay), stopping.wait())
    return None


async def stop_after(first: Collection[asyncio.Task[None]], stopping: StopRequest, others: StopRequest) -> None:
    """Sets `others` after `stopping` once the `first` tasks have ended; at once if there is a failure, or no grace."""
    await stopping.wait()
    if first and stopping.reason is None:
        await run_until(asyncio.wait(first), stopping.wait_immediate())
    others.set()
    await stopping.wait_immediate()
    others.set_immediate()


async def _end_of(child: Child, program: Supervised, stopping: StopRequest) -> int:
    """Waits until the program ends, by itself or because of `stopping`; returns its status."""
    await run_until(child.wait(), stopping.wait())
    if stopping:
        if program.drain_seconds and stopping.reason is None:
            await run_until(_drain(child, program), stopping.wait_immediate())
        child.stop()
        await run_until(child.wait(), stopping.wait_immediate())
        child.kill()
    return await child.wait()


async def _drain(child: Child, program: Supervised) -> None:
    """Returns when the program has ended, or its time to drain."""
    child.drain()
    if await run_until(child.wait(), asyncio.sleep(QUIET_SECONDS)):
        return
    program.log(f"ends its foreground answers, for {program.drain_seconds:g} s at most; Ctrl-C stops it now")
    await run_until(child.wait(), asyncio.sleep(program.drain_seconds - QUIET_SECONDS))


async def run_unless_stopped(stopping: StopRequest, work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`. If `stopping` is set before it ends, cancels it and raises Stopped."""
    if stopping:
        work.close()
        raise Stopped
    task = asyncio.create_task(work)
    await run_until(asyncio.wait({task}), stopping.wait())
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
