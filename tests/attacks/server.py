"""The attacked installation from the inside: the memory of its processes, its connections, its unfinished work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil

from tests.attacks.attack import KEPT_BYTES, OTHER_KEPT_BYTES, Memory
from tests.support.longhaul import Longhaul
from tests.support.waiting import until

SAMPLE_SECONDS = 0.05
LOOKS = 20
"""Processes are looked for at every so many samples: that takes longer than their memory."""
LEFTOVER_SECONDS = 60.0
KEPT_SECONDS = 60.0
"""How long memory may take to be given back, where it is given back at all."""
OTHERS = 16
"""Connections and unfinished responses that may be there at any time: the bystander's, and some that just end."""
ESTABLISHED, CLOSE_WAIT = "01", "08"
LEAST = {"api": KEPT_BYTES, "worker": KEPT_BYTES, "other": OTHER_KEPT_BYTES}
"""What may stay behind in the processes of a role, whatever the peak was."""
_WORKER = "workers.main:celery"
_UNFINISHED = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"

Sizes = dict[str, int]
"""Bytes of memory: of all processes of API and worker, and of each other process by its pid."""


class Server:
    """Looks at the processes of a `Longhaul` that is ready."""

    def __init__(self, longhaul: Longhaul) -> None:
        self._longhaul = longhaul
        self._others: list[psutil.Process] = []
        self._processes = self._find()
        environment = self._processes["api"][-1].environ()
        self.database_url, self.redis_url = environment["DATABASE_URL"], environment["REDIS_URL"]

    @contextlib.contextmanager
    def peaks(self) -> Iterator[tuple[Sizes, Sizes]]:
        """What is before the block, and the most within it; sampled in a thread: attacks keep the event loop busy."""
        before, ended = self._memory(look=True), threading.Event()
        most = dict(before)

        def sample() -> None:
            number = 0
            while not ended.wait(SAMPLE_SECONDS):
                for name, size in self._memory(look=number % LOOKS == 0).items():
                    most[name] = max(size, most.get(name, 0))
                number += 1

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield before, most
        finally:
            ended.set()
            thread.join()

    async def memory(self, before: Sizes, most: Sizes) -> dict[str, Memory]:
        """By role: the peak, and what is kept once that is little or KEPT_SECONDS have passed."""
        found: dict[str, Memory] = {}

        def is_little() -> bool:
            peak, kept = _growth(before, most), _growth(before, self._memory(look=True))
            found.update({role: Memory(peak[role], (kept[role],), LEAST[role]) for role in LEAST})
            return not any(each.keeps for each in found.values())

        with contextlib.suppress(AssertionError):
            await until(is_little, KEPT_SECONDS)
        return found

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

        async def nothing_is_left() -> bool:
            return not await self._look()

        with contextlib.suppress(AssertionError):
            await until(nothing_is_left, LEFTOVER_SECONDS)
            return ()
        return await self._look()

    async def _look(self) -> tuple[str, ...]:
        for role, each in self._processes.items():
            if not each or not all(process.is_running() for process in each):
                self._processes = self._find()
                return (f"a process of the {role} died",)
        connection = await asyncpg.connect(self.database_url)
        try:
            unfinished = int(await connection.fetchval(_UNFINISHED))
        finally:
            await connection.close()
        left = {"connections are left": len(self.served_ports()), "responses are unfinished": unfinished}
        return tuple(f"{count} {words}" for words, count in left.items() if count > OTHERS)

    def _find(self) -> dict[str, list[psutil.Process]]:
        listening = [process for process in self._longhaul.processes() if self._listens(process)]
        return {"api": listening, "worker": self._longhaul.named([_WORKER])}

    def _listens(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            found = process.net_connections("tcp")
            return any(each.status == "LISTEN" and each.laddr[1] == self._longhaul.port for each in found)
        return False

    def _memory(self, *, look: bool) -> Sizes:
        """Resident bytes; of other processes, those that they share with nobody: Postgres shares much."""
        if look:
            known = {process.pid for processes in self._processes.values() for process in processes}
            self._others = [process for process in self._longhaul.processes() if process.pid not in known]
        sizes = dict.fromkeys(self._processes, 0)
        for role, processes in self._processes.items():
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    sizes[role] += process.memory_info().rss
        for process in self._others:
            with contextlib.suppress(psutil.Error):
                memory = process.memory_info()
                sizes[str(process.pid)] = memory.rss - memory.shared
        return sizes


def _growth(before: Sizes, sizes: Sizes) -> Sizes:
    """By role; `other` is the one process that grew most."""
    more = {name: max(0, size - before.get(name, 0)) for name, size in sizes.items()}
    return {"api": more.pop("api", 0), "worker": more.pop("worker", 0), "other": max(more.values(), default=0)}
