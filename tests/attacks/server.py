"""The attacked installation from the inside: the memory of its processes, its connections, its unfinished work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import psutil

from tests.attacks.memory import KEPT_BYTES
from tests.support.longhaul import Longhaul
from tests.support.waiting import until

SAMPLE_SECONDS = 0.05
LEFTOVER_SECONDS = 20.0
KEPT_SECONDS = 5.0
"""How long memory may take to be given back, where it is given back at all."""
OTHERS = 4
"""Connections and unfinished responses that may be there at any time: the bystander's, and one that just ends."""
ESTABLISHED, CLOSE_WAIT = "01", "08"
_WORKER = "workers.main:celery"
_UNFINISHED = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"


@dataclass(slots=True)
class Peaks:
    """Bytes of resident memory of all processes of a role: before, and at most since."""

    before: dict[str, int]
    most: dict[str, int] = field(default_factory=dict)

    def growth(self, role: str) -> int:
        return max(0, self.most.get(role, 0) - self.before[role])


class Server:
    """Looks at the processes of a `Longhaul` that is ready."""

    def __init__(self, longhaul: Longhaul) -> None:
        self._longhaul = longhaul
        self._processes = self._find()
        environment = self._processes["api"][-1].environ()
        self.database_url, self.redis_url = environment["DATABASE_URL"], environment["REDIS_URL"]

    @contextlib.contextmanager
    def peaks(self) -> Iterator[Peaks]:
        """Samples the memory within the block, in a thread: the attack keeps the event loop busy."""
        peaks, ended = Peaks(self._memory()), threading.Event()

        def sample() -> None:
            while not ended.wait(SAMPLE_SECONDS):
                for role, size in self._memory().items():
                    peaks.most[role] = max(size, peaks.most.get(role, 0))

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield peaks
        finally:
            ended.set()
            thread.join()

    def cpu_seconds(self, role: str) -> float:
        """The CPU time of the role's processes since their start."""
        times = [process.cpu_times() for process in self._processes[role] if process.is_running()]
        return sum(each.user + each.system for each in times)

    async def kept(self, peaks: Peaks) -> dict[str, int]:
        """What each role has more than before, once that is little or KEPT_SECONDS have passed."""

        def more() -> dict[str, int]:
            return {role: max(0, size - peaks.before[role]) for role, size in self._memory().items()}

        with contextlib.suppress(AssertionError):
            await until(lambda: max(more().values()) <= KEPT_BYTES, KEPT_SECONDS)
        return more()

    def served_ports(self) -> set[int]:
        """The clients' ports of the connections that the API has not closed."""
        lines = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ours = f":{self._longhaul.port:04X}"
        return {
            int(remote.rpartition(":")[2], 16)
            for local, remote, state in lines
            if local.endswith(ours) and state in (ESTABLISHED, CLOSE_WAIT)
        }

    async def leftovers(self) -> tuple[str, ...]:
        """What is left LEFTOVER_SECONDS after an attack: connections, responses that do not end, dead processes."""
        found: tuple[str, ...] = ()

        async def nothing_is_left() -> bool:
            nonlocal found
            found = await self._look()
            return not found

        with contextlib.suppress(AssertionError):
            await until(nothing_is_left, LEFTOVER_SECONDS)
        return found

    async def _look(self) -> tuple[str, ...]:
        dead = [f"a process of the {role} died" for role, each in self._processes.items() if not _all_run(each)]
        if dead:
            self._processes = self._find()
            return tuple(dead)
        connections, unfinished = len(self.served_ports()), await self._unfinished()
        left = []
        if connections > OTHERS:
            left.append(f"{connections} connections are left")
        if unfinished > OTHERS:
            left.append(f"{unfinished} responses are unfinished")
        return tuple(left)

    def _find(self) -> dict[str, list[psutil.Process]]:
        listening = [process for process in self._longhaul.processes() if self._listens(process)]
        return {"api": listening, "worker": self._longhaul.named([_WORKER])}

    def _listens(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            found = process.net_connections("tcp")
            return any(each.status == "LISTEN" and each.laddr[1] == self._longhaul.port for each in found)
        return False

    async def _unfinished(self) -> int:
        connection = await asyncpg.connect(self.database_url)
        try:
            return int(await connection.fetchval(_UNFINISHED))
        finally:
            await connection.close()

    def _memory(self) -> dict[str, int]:
        sizes = dict.fromkeys(self._processes, 0)
        for role, processes in self._processes.items():
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    sizes[role] += process.memory_info().rss
        return sizes


def _all_run(processes: list[psutil.Process]) -> bool:
    return bool(processes) and all(process.is_running() for process in processes)
