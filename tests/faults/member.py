"""One process of the fleet: started again whenever it ends, as `longhaul up` does, but at once."""

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
from tests.faults.proxy import Proxy
from tests.support.services import descendants

PAUSE_SECONDS = 0.2
_WRONG = (" ERROR ", " CRITICAL ", "Traceback (most recent call last)")


class Role(Enum):
    API = "api"
    WORKER = "worker"
    MAINTENANCE = "maintenance"
    FLOWER = "flower"


@dataclass(slots=True, eq=False)
class Member:
    """`program` is asked before each start. `postgres` and `redis` are its own ways to the services."""

    name: str
    role: Role
    program: Callable[[], Program]
    log: Path
    postgres: Proxy
    redis: Proxy
    address: str = ""
    """Where an API listens."""
    starts: int = 0
    complaints: list[str] = field(default_factory=list)
    """Lines of its log at ERROR or above."""
    told_to_stop: list[float] = field(default_factory=list)
    """When it was given SIGTERM (monotonic seconds)."""
    _child: Child | None = None
    _keeper: asyncio.Task[None] | None = None
    _closing: bool = False

    def start(self) -> None:
        """Keeps it running, until it is closed; after that it may be started again."""
        self._closing = False
        self._keeper = asyncio.create_task(self._keep(), name=self.name)

    @property
    def pid(self) -> int | None:
        """The program's process, behind its guardian."""
        return None if self._child is None else next(iter(descendants(self._child.pid)), None)

    @property
    def guardian(self) -> int | None:
        return None if self._child is None else self._child.pid

    def signal(self, number: signal.Signals) -> int | None:
        """Sends a signal to the program; returns its pid, None where there is none now."""
        if (pid := self.pid) is None:
            return None
        if number is signal.SIGTERM:
            self.told_to_stop.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return pid
        return None

    async def close(self) -> int | None:
        """Stops it for good, in order; returns the exit status."""
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
                self._child = await Child.start(self.program(), self._take)
                self.starts += 1
                if self._closing:
                    self._child.stop()
                await self._child.wait()
            except (ConfigError, LocalError) as error:  # its port is not free yet, for instance
                self._take(f"cannot start: {error}")
            if not self._closing:
                await asyncio.sleep(PAUSE_SECONDS)

    def _take(self, line: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if any(word in line for word in _WRONG):
            self.complaints.append(line)
