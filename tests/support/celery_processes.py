"""Real processes of `longhaul`, `celery worker` and `flower` for tests, on the session's services."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from celery import Celery

from app.local.ports import free_port
from config.process import CHECKOUT
from tests.support.forks import CELERY, LONGHAUL, Forked
from tests.support.waiting import PATIENCE_SECONDS, until_sync

QUEUE = "model.pretend"


def own_database(redis_url: str) -> str:
    """The Redis database of these tests: Celery's remote control reaches every worker on the same database."""
    return redis_url.removesuffix("/0") + "/7"


class Process:
    """A process in a session of its own, with its output in a file. `kill` ends all processes of the session."""

    def __init__(self, args: list[str], env: Mapping[str, str], output: Path) -> None:
        self.output = output
        self.process = self._start(args, {**os.environ, **env, "PYTHONUNBUFFERED": "1"})

    def _start(self, args: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes] | Forked:
        with self.output.open("wb") as file:
            return subprocess.Popen(
                args,
                env=env,
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def send_signal(self, signum: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(signum)

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGUSR1)  # Celery writes the stacks of its threads
            raise AssertionError(f"the process did not end within {timeout} s:\n{self.text[-4000:]}") from None

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # one that has just been forked leads no session yet
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class ForkedProcess(Process):
    """A program of `tests.support.forks`; without the name of one, a `longhaul` command."""

    def __init__(self, args: list[str], env: Mapping[str, str], output: Path, program: str = LONGHAUL) -> None:
        self._program = program
        super().__init__(args, env, output)

    def _start(self, args: list[str], env: Mapping[str, str]) -> Forked:
        return Forked(self._program, args, env, self.output)


class Worker(ForkedProcess):
    """A worker whose node is its name."""

    def __init__(self, redis_url: str, folder: Path, name: str = "w1", concurrency: int = 64, **env: str) -> None:
        args = ["--quiet", "-A", "tests.support.queue_app:celery", "worker"]
        args += ["-Q", QUEUE, "-c", str(concurrency), "-n", f"{name}@test", "-l", "INFO"]
        env = {"REDIS_URL": redis_url, "LONGHAUL_SHUTDOWN_GRACE_SECONDS": "2", "PRETEND_NODE": name, **env}
        self._redis_url, self._name = redis_url, f"{name}@test"
        super().__init__(args, env, folder / f"{name}.log", CELERY)

    def ready(self) -> Worker:
        """Waits until the worker answers: kombu subscribes to broadcasts only after Celery has logged "ready"."""
        until_sync(lambda: " ready." in self.text or not self.is_running, what="the worker")
        assert self.is_running, self.text
        with Celery(broker=self._redis_url) as celery, celery.connection_for_write() as connection:
            ping = partial(celery.control.broadcast, "ping", destination=[self._name], connection=connection)
            until_sync(lambda: ping(reply=True, limit=1, timeout=1.0), what="an answer of the worker")
        return self


class Flower(Process):
    def __init__(self, redis_url: str, folder: Path, auth: str) -> None:
        self.port = free_port()
        args = [sys.executable, "-m", "celery", "-A", "app.flower.main:flower_app", "flower"]
        args += ["--address=127.0.0.1", f"--port={self.port}"]
        super().__init__(args, {"REDIS_URL": redis_url, "FLOWER_BASIC_AUTH": auth}, folder / "flower.log")
