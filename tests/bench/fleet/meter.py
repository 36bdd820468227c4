"""What Postgres, Valkey, the API and this process use, to the nanosecond where the kernel says it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.bench.contenders.longhaul import Longhaul
from tests.bench.processes import Role

NANO = 1e-9


class Own(StrEnum):
    """Beside the roles of Longhaul's processes."""

    SELF = "self"


@dataclass(slots=True)
class Used:
    """CPU seconds by role, and bytes of WAL; filled in at the end."""

    cpu: dict[str, float] = field(default_factory=dict)
    wal: float = 0.0

    def of(self, role: Role | Own) -> float:
        return self.cpu.get(role.value, 0.0)


class Meter:
    """Reads the clocks of one Longhaul."""

    def __init__(self, longhaul: Longhaul) -> None:
        self._longhaul = longhaul

    @asynccontextmanager
    async def measure(self) -> AsyncIterator[Used]:
        """What is used inside the block. A process that ends inside is not counted: keep pools open."""
        used = Used()
        wal, clocks = await self._wal(), self._clocks()
        yield used
        after = self._clocks()
        used.wal = await self._wal() - wal
        for role, threads in after.items():
            spent = sum(value - clocks.get(role, {}).get(thread, 0) for thread, value in threads.items())
            used.cpu[role] = spent * NANO

    def _clocks(self) -> dict[str, dict[int, int]]:
        """Role -> thread -> nanoseconds."""
        pids = {role.value: found for role, found in self._longhaul.processes().items()}
        return {role: threads(found) for role, found in {**pids, Own.SELF.value: [os.getpid()]}.items()}

    async def _wal(self) -> float:
        return float(await self._longhaul.wal_bytes() or 0)


def threads(pids: Iterable[int]) -> dict[int, int]:
    """Nanoseconds on a core of every thread of these processes (Documentation/scheduler/sched-stats.rst)."""
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    found[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return found
