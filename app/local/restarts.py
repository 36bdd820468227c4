"""Restarts programs that end, whatever ended them.

    start -> running -> (shutdown) drain, stop signal, grace, SIGKILL -> done
                     -> (ended by itself) delay, then start

What cannot run waits longer and longer, and nothing else waits for it. One case ends all: a needed program whose very
first start has the status of a wrong configuration. Then Longhaul as a whole was started wrongly.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from app.aio import run_until
from app.local.children import Child
from app.local.errors import LocalError
from config.worker_readiness import PART_DIED

CONFIG_STATUSES = frozenset({2, 78, 126, 127})
"""Exit statuses that a restart alone does not change: wrong usage (2, as in Click), EX_CONFIG of sysexits.h (78),
and a program that cannot be run or does not exist (126 and 127, as in the shell)."""
SHORT_LIFE_SECONDS = 60.0
MIN_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 60.0
QUIET_SECONDS = 1.0
"""How long a program may drain before the log says so."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|[0-9]+")

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
    is_needed: bool = False
    """Whether Longhaul as a whole must not run if its first start has a wrong configuration."""
    pause: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep
    """Waits so many seconds until the next start; less, if something has changed that the start depends on."""


@dataclass(slots=True)
class DeathRecord:
    """How often a program has died in a row, each time soon after its start."""

    deaths: int = 0
    """0: its last life was long."""

    def died(self, status: int, lifetime: float) -> None:
        """Records a death after `lifetime` seconds."""
        is_soon = lifetime < SHORT_LIFE_SECONDS and status != PART_DIED
        self.deaths = self.deaths + 1 if is_soon else 0

    @property
    def delay(self) -> float:
        """Seconds until the restart: none after the first death, for clients are waiting."""
        return float(min(MIN_DELAY_SECONDS * 2 ** (self.deaths - 2), MAX_DELAY_SECONDS)) if self.deaths > 1 else 0.0


async def supervise(program: Supervised, stopping: StopRequest, first: Child | None = None) -> str | None:
    """Keeps one program running until `stopping`. Returns None, or why Longhaul must not run without it (one line)."""
    record, child, said, must_run = DeathRecord(), first, "", program.is_needed
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
        how = f"ended with {describe(status)}"
        why = f"{how}: {last}" if last and status > 0 and status != PART_DIED else how
        if must_run and status in CONFIG_STATUSES and record.deaths:
            return why
        is_known, said, must_run = _shape(why) == said, _shape(why), False
        program.log(f"{f'{how} again' if is_known else why}; starting again in {record.delay:g} s")
        await run_until(program.pause(record.delay), stopping.wait())
    return None


def _shape(line: str) -> str:
    """A line without its numbers."""
    return _NUMBERS.sub("", line)


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
