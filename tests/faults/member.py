"""One process of the fleet. Whenever it ends it is started again, as `longhaul up` does, but without a back-off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from app.local.children import Child, Program
from app.local.errors import LocalError
from config.settings import ConfigError
from tests.faults.clocks import Clock
from tests.faults.proxy import Proxy
from tests.support.processes import tree

PAUSE_SECONDS = 0.2
_ERROR_MARKS = (" ERROR ", " CRITICAL ")
_TRACEBACK = "Traceback (most recent call last):"


class Role(Enum):
    API = "api"
    WORKER = "worker"
    MAINTENANCE = "maintenance"
    FLOWER = "flower"
    SERVER = "server"
    """The engine of a worker, elsewhere."""


@dataclass(slots=True, eq=False)
class Member:
    """`program` is called before each start. `postgres` and `redis` are the process's own proxies to the services."""

    name: str
    role: Role
    program: Callable[[], Program]
    log: Path
    postgres: Proxy
    redis: Proxy
    address: str = ""
    """URL of an API process, or of a server; empty for others."""
    clock: Clock | None = None
    """The process's own wall clock; None without a C compiler."""
    front: Proxy | None = None
    """Of a server: between it and its worker."""
    starts: int = 0
    error_lines: list[str] = field(default_factory=list)
    """Lines of its log at ERROR or above."""
    _in_traceback: bool = False
    stopped_at: list[float] = field(default_factory=list)
    """When it was given SIGTERM (monotonic seconds)."""
    _child: Child | None = None
    _keeper: asyncio.Task[None] | None = None
    _closing: bool = False

    def start(self) -> None:
        """Keeps the process running until `close`, after which `start` may be called again."""
        self._closing = False
        self._keeper = asyncio.create_task(self._keep(), name=self.name)

    @property
    def pid(self) -> int | None:
        """The pid of the program."""
        return next(iter(self.group), None)

    @property
    def group(self) -> list[int]:
        """The pids of the program and all its children."""
        return [] if self._child is None else tree(self._child.pid)

    def signal(self, number: signal.Signals) -> int | None:
        """Sends a signal to the program. Returns its pid, or None if it does not run now."""
        if (pid := self.pid) is None:
            return None
        if number is signal.SIGTERM:
            self.stopped_at.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return pid
        return None

    def signal_all(self, number: signal.Signals) -> None:
        """Sends a signal to the program and all its children at once, as systemd stops a control group."""
        if number is signal.SIGTERM:
            self.stopped_at.append(time.monotonic())
        for pid in self.group:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def close(self) -> int | None:
        """Stops the process in order and for good; returns its exit status."""
        self._closing = True
        self.signal(signal.SIGCONT)
        if self._child is not None:
            self._child.stop()
        assert self._keeper is not None
        await self._keeper
        return None if self._child is None else await self._child.wait()

    async def _keep(self) -> None:
        while not self._closing:
            try:
                self._child = await Child.start(self.program(), self._log_line)
                self.starts += 1
                if self._closing:
                    self._child.stop()
                await self._child.wait()
            except (ConfigError, LocalError) as error:  # e.g. its port is not free yet
                self._log_line(f"cannot start: {error}")
            if not self._closing:
                await asyncio.sleep(PAUSE_SECONDS)

    def _log_line(self, line: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if self._in_traceback and line and not line.startswith(" "):  # its last line
            self.error_lines.append(f"{_TRACEBACK} {line}")
            self._in_traceback = False
        elif line == _TRACEBACK:
            self._in_traceback = True
        elif any(word in line for word in _ERROR_MARKS):
            self.error_lines.append(line)
