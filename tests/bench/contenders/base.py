"""What every contender has: programs, their pids by role, and a log of their output."""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TextIO, TypeVar

import httpx
import psutil

from app.local.children import Child, Program
from tests.bench.load import Load
from tests.bench.measurement import Go
from tests.bench.processes import Role, cpu_seconds, freeze, thaw, tree
from tests.support.waiting import until

T = TypeVar("T")

START_SECONDS = 900.0
"""vLLM compiles for minutes when it first starts on a GPU."""
STOP_SECONDS = 20.0


class CannotStart(Exception):
    """A program ended instead of getting ready; the message is its last line."""


class Contender(ABC):
    """Something to measure: start it, load it, stop it. Its programs cannot outlive this process."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._children: dict[Role, Child] = {}
        self._output: TextIO | None = None

    @abstractmethod
    async def start(self) -> None:
        """Returns when it is ready for a load. Raises CannotStart."""

    @abstractmethod
    def client(self, load: Load) -> AbstractAsyncContextManager[Go]:
        """A client of this contender that has warmed up. Fills in the load's `url` and model."""

    async def wal_bytes(self) -> int | None:
        """What it has written into Postgres' log so far; None: it has no Postgres."""
        return None

    async def stop(self) -> None:
        """Everything, in order; may be called again, and before the start."""
        await asyncio.gather(*(self.end(role) for role in list(self._children)))
        if self._output is not None:
            self._output.close()
            self._output = None

    # -- its processes -----------------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def processes(self) -> Mapping[Role, Sequence[int]]:
        """Live pids by role; what is below a main process is an engine's."""
        found: dict[Role, list[int]] = {role: [] for role in (*self._children, Role.ENGINE)}
        for role in self._children:
            found[role] += self.below(role)[:1]
            found[Role.ENGINE] += self.below(role)[1:]
        return {role: pids for role, pids in found.items() if pids}

    def below(self, role: Role) -> list[int]:
        """The program's main process and all below it; empty where it has ended."""
        child = self._children.get(role)
        return tree(child.pid) if child else []

    def cpu(self) -> dict[Role, float]:
        """Seconds used so far."""
        return {role: cpu_seconds(pids) for role, pids in self.processes().items()}

    def own(self) -> set[int]:
        return {pid for pids in self.processes().values() for pid in pids}

    def freeze(self) -> None:
        """Holds the programs still: an engine's busy loops would take the cores from the contender that is measured."""
        freeze(pid for role in self._children for pid in self.below(role))

    def thaw(self) -> None:
        thaw(pid for role in self._children for pid in self.below(role))

    async def launch(self, role: Role, argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        program = Program(tuple(argv), {**os.environ, **env}, cwd, grace=STOP_SECONDS)
        self._children[role] = await Child.start(program, self._note)

    async def end(self, role: Role) -> None:
        """Stops one program, a frozen one too."""
        child = self._children.pop(role, None)
        if child is not None:
            thaw(tree(child.pid))
            await child.stop_and_wait()

    async def ready(self, role: Role, is_ready: Callable[[], T]) -> T:
        """What it returns once that is true. Raises CannotStart where the program of that role ends instead."""
        child = self._children[role]

        def look() -> T:
            with contextlib.suppress(psutil.Error):
                if psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
                    return is_ready()
            raise CannotStart(f"{self.name}: {child.last_line or 'it ended'} (see {self.log})")

        return await until(look, START_SECONDS, f"{self.name} is ready (see {self.log})")

    def _note(self, line: str) -> None:
        if self._output is None:  # Kept open: to open it for each line would cost what is measured its cores.
            self._output = self.log.open("a", encoding="utf-8", buffering=1)
        self._output.write(line + "\n")


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        return httpx.get(url, timeout=5, verify=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
