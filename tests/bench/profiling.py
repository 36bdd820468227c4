"""py-spy beside a round: where a process of Longhaul spends its time, as a table of self time and as raw stacks.

One recording for each round, cell and process, in build/bench/profiles; `.txt` is the table, `.folded` the stacks
(`flamegraph.pl`, speedscope and py-spy's own tools read them).
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.bench.contenders.base import Contender
from tests.bench.processes import Role
from tests.bench.results import BUILD

PROFILES = BUILD / "profiles"
PY_SPY = Path(sys.executable).with_name("py-spy")
RATE = "200"
"""Samples per second."""
SHOWN = 40


class Profiler:
    """Records `roles` of those among the contenders that have them."""

    def __init__(self, roles: Iterable[str] = (), folder: Path = PROFILES) -> None:
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
            for process, file in recorders:
                process.send_signal(signal.SIGINT)
                await process.wait()
                if file.exists():
                    file.with_suffix(".txt").write_text(table(file.read_text(encoding="utf-8")), encoding="utf-8")

    async def _record(self, name: str, pid: int) -> tuple[asyncio.subprocess.Process, Path]:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / (re.sub(r"[^\w.+-]+", "_", name) + ".folded")
        # Threads that hold the GIL: py-spy takes many that only wait for running ones.
        how = ("--gil", "--native", "--rate", RATE, "--format", "raw")
        command = (str(PY_SPY), "record", "--pid", str(pid), *how, "--output", str(file))
        quiet = asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet), file


def table(folded: str) -> str:
    """The functions with the most time of their own, and how much passes through each (per cent of all samples)."""
    own, through, total = Counter[str](), Counter[str](), 0
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_function(frame) for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        through.update({frame: int(count) for frame in set(frames)})
        total += int(count)
    rows = [f"{total} samples", "  self  total  function"]
    rows += [f"{_share(n, total)} {_share(through[frame], total)}  {frame}" for frame, n in own.most_common(SHOWN)]
    rows += ["", "  total  function"]
    rows += [f"{_share(n, total)}  {frame}" for frame, n in through.most_common(2 * SHOWN)]
    return "\n".join(rows) + "\n"


def _function(frame: str) -> str:
    """Without its line: `name (file)`."""
    return re.sub(r":\d+\)$", ")", frame)


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:5.1f} %"
