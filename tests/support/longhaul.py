"""The whole of Longhaul as a user starts it: `longhaul up` in a process of its own, on free ports."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import httpx
import psutil
from openai import AsyncOpenAI, OpenAI

from app.local.ports import free_port
from tests.support.clusters import add_cluster
from tests.support.waiting import PATIENCE_SECONDS, until_sync

READY_SECONDS = 180.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.25
"""Between two questions whether it is ready: they take time from the start that they wait for."""
COMMAND = Path(sys.executable).parent / "longhaul"


def send_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Sends a signal to each, one after the other. Some may be gone by then: children end when their parent does."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class Longhaul:
    """One installation: a data folder and its ports. Start it, stop it, start it again."""

    def __init__(
        self,
        home: Path,
        models: Path | None = None,
        workers: int = 1,
        model: str | None = None,
        upstream: str | None = None,
        command: Path = COMMAND,
        **environment: str,
    ) -> None:
        self.home = home
        self.port = free_port()
        self.flower_port = free_port()
        self.log = home.parent / f"{home.name}.log"
        self._folder = None if command == COMMAND else home.parent  # in a checkout Python finds what a wheel may lack
        self._arguments = [str(command), "up", "--workers", str(workers), *(("--model", model) if model else ())]
        self._arguments += ["--upstream", upstream] if upstream else []
        self._environment = {
            **os.environ,
            "LONGHAUL_HOME": str(home),
            "LONGHAUL_PORT": str(self.port),
            "LONGHAUL_FLOWER_PORT": str(self.flower_port),
            **({"LONGHAUL_MODELS": str(models)} if models else {}),
            **environment,
        }
        self.ready_seconds = READY_SECONDS
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def flower(self) -> httpx.Client:
        """Flower's HTTP API, signed in."""
        user, password = (self.home / "flower-auth").read_text().strip().split(":", 1)
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.flower_port}", auth=(user, password), timeout=PATIENCE_SECONDS
        )

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0)

    def async_client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS)

    def start(self) -> None:
        """Returns once the API says that everything is there."""
        if not self.home.exists():
            add_cluster(self.home)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments,
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        with httpx.Client(base_url=self.url, timeout=5) as http:
            until_sync(lambda: self._is_ready(http), self.ready_seconds, "longhaul up is ready", pause=POLL_SECONDS)

    def _is_ready(self, http: httpx.Client) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"longhaul up ended: {self.tail()}"
        try:
            return bool(http.get("/health/ready").json()["status"] == "ready")
        except httpx.TransportError:
            return False

    def stop(self) -> int:
        """SIGTERM; returns the exit status once every process is gone."""
        return 0 if self._process is None else self._ended(lambda process, _: process.send_signal(signal.SIGTERM))

    def terminate_all(self) -> None:
        """SIGTERM to every process at once, as a machine that shuts down sends it; returns once all are gone."""
        assert self._ended(lambda _, known: send_all(known, signal.SIGTERM)) == 0, self.tail()

    def _ended(self, send: Callable[[subprocess.Popen[bytes], list[psutil.Process]], None]) -> int:
        assert self._process is not None
        known = self.processes()
        send(self._process, known)
        status = self._process.wait(STOP_SECONDS)
        self._process = None
        _gone, alive = psutil.wait_procs(known, timeout=STOP_SECONDS)
        assert not alive, f"left behind: {alive}"
        return status

    def processes(self) -> list[psutil.Process]:
        """Every process that belongs to it now."""
        assert self._process is not None
        top = psutil.Process(self._process.pid)
        return [top, *top.children(recursive=True)]

    def named(self, words: Sequence[str]) -> list[psutil.Process]:
        """Its processes whose command line holds all of `words`."""
        found = []
        for process in self.processes():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if all(word in line for word in words):
                found.append(process)
        return found

    def tail(self, lines: int = 30) -> str:
        """The end of what it printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
