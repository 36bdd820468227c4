"""The attacked installation from the inside: the memory of its processes, its connections, its unfinished work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import psutil

from tests.attacks.memory import KEPT_BYTES, OTHER_KEPT_BYTES, is_kept
from tests.support.longhaul import Longhaul
from tests.support.waiting import until

SAMPLE_SECONDS = 0.05
LOOK_SECONDS = 1.0
LEFTOVER_SECONDS = 60.0
KEPT_SECONDS = 60.0
"""How long memory may take to be given back, where it is given back at all."""
OTHERS = 16
"""Connections and unfinished responses that may be there at any time: the bystander's, and some that just end."""
ESTABLISHED, CLOSE_WAIT = "01", "08"
_WORKER = "workers.main:celery"
_UNFINISHED = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"


ROLES = ("api", "worker")
LEAST = {"api": KEPT_BYTES, "worker": KEPT_BYTES, "other": OTHER_KEPT_BYTES}
"""What may stay behind in the processes of a role, whatever the peak was."""


@dataclass(slots=True)
class Peaks:
    """Bytes of memory of all processes of a role, and of each other process: before, and at most since."""

    before: dict[str, int]
    most: dict[str, int] = field(default_factory=dict)

    def see(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            self.most[name] = max(size, self.most.get(name, 0))

    def growth(self) -> dict[str, int]:
        """By role; `other` is the one process that grew most."""
        return self.beyond(self.most)

    def beyond(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """How much more than before these sizes are."""
        more = {name: max(0, size - self.before.get(name, 0)) for name, size in sizes.items()}
        roles = {role: more.pop(role, 0) for role in ROLES}
        return {**roles, "other": max(more.values(), default=0)}


class Server:
    """Looks at the processes of a `Longhaul` that is ready."""

    def __init__(self, longhaul: Longhaul) -> None:
        self._longhaul = longhaul
        self._others: list[psutil.Process] = []
        self._looked_at = 0.0
        self._processes = self._find()
        environment = self._processes["api"][-1].environ()
        self.database_url, self.redis_url = environment["DATABASE_URL"], environment["REDIS_URL"]

    @contextlib.contextmanager
    def peaks(self) -> Iterator[Peaks]:
        """Samples the memory within the block, in a thread: the attack keeps the event loop busy."""
        peaks, ended = Peaks(self._memory()), threading.Event()

        def sample() -> None:
            while not ended.wait(SAMPLE_SECONDS):
                peaks.see(self._memory())

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
        growth = peaks.growth()

        def is_little() -> bool:
            left = peaks.beyond(self._memory())
            return not any(is_kept(left[role], growth[role], LEAST[role]) for role in left)

        with contextlib.suppress(AssertionError):
            await until(is_little, KEPT_SECONDS)
        return peaks.beyond(self._memory())

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
        """Resident bytes by role; of each other process, those that it shares with nobody: Postgres shares much."""
        sizes = dict.fromkeys(ROLES, 0)
        for role, processes in self._processes.items():
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    sizes[role] += process.memory_info().rss
        for process in self._find_others():
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                sizes[str(process.pid)] = memory.rss - memory.shared
        return sizes

    def _find_others(self) -> list[psutil.Process]:
        """Looks for processes once a second: that takes longer than their memory."""
        if (now := time.monotonic()) > self._looked_at + LOOK_SECONDS:
            known = {process.pid for processes in self._processes.values() for process in processes}
            self._others = [process for process in self._longhaul.processes() if process.pid not in known]
            self._looked_at = now
        return self._others


def _all_run(processes: list[psutil.Process]) -> bool:
    return bool(processes) and all(process.is_running() for process in processes)
