"""py-spy beside a round: where a process of Longhaul spends its time, in build/bench/profiles.

A file for each round, cell and process has the stacks (`flamegraph.pl` and speedscope read them).
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.bench.contenders.base import Contender
from tests.bench.processes import Role
from tests.bench.results import BUILD

PY_SPY = Path(sys.executable).with_name("py-spy")
HOW = ("--gil", "--native", "--rate", "200", "--format", "raw")
"""Threads that hold the GIL: py-spy takes many that only wait for running ones."""


class Profiler:
    """Records `roles` of those among the contenders that have them."""

    def __init__(self, roles: Iterable[str] = (), folder: Path = BUILD / "profiles") -> None:
        self._roles = [Role(role) for role in roles]
        self._folder = folder

    @asynccontextmanager
    async def recording(self, contender: Contender, name: str) -> AsyncIterator[None]:
        """For the length of the block; what was recorded is written at its end."""
        found = contender.processes()
        targets = [(role, pid) for role in self._roles for pid in found.get(role, ())]
        recorders = [await self._record(f"{name}-{contender.name}-{role}-{pid}", pid) for role, pid in targets]
        try:
            yield
        finally:
            for process in recorders:
                process.send_signal(signal.SIGINT)
                await process.wait()

    async def _record(self, name: str, pid: int) -> asyncio.subprocess.Process:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / (re.sub(r"[^\w.+-]+", "_", name) + ".folded")
        command = (str(PY_SPY), "record", "--pid", str(pid), *HOW, "--output", str(file))
        quiet = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
