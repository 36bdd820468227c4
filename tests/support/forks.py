"""Our programs in processes that are forked from one that has imported them, which takes two seconds of CPU for each.

Such a process is what the command starts, in a session of its own; but what was imported is there already.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from celery.concurrency import ALIASES

CELERY, LONGHAUL, READ_ONLY = "celery.__main__", "app.cli", "tests.support.read_only"
"""Modules whose `main` is the command. Others run as `python -m` runs them."""
IMPORTED = [
    CELERY,
    "celery.bin.celery",
    "celery.apps.worker",
    "flower.command",
    "workers.main",
    LONGHAUL,
    "app.local.up",
    "uvicorn.main",
    "app.main",
    "app.maintenance.__main__",
    "workers.toolservers.browser.__main__",
    "workers.toolservers.python.__main__",
]
"""But for the name of Celery's pool, none of them reads the environment, which is each process's own."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(IMPORTED)


class Forked:
    """What the tests use of `subprocess.Popen`. `output` and `errors` are files; without `errors` both are one."""

    def __init__(
        self, command: str, args: Sequence[str], env: Mapping[str, str], output: Path, errors: Path | None = None
    ) -> None:
        for file in (output, errors or output):
            file.write_bytes(b"")
        words = (command, list(args), dict(env), str(Path.cwd()), str(output), str(errors or ""))
        self._process = _context.Process(target=_run, args=words, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signum: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)


def _run(command: str, args: list[str], env: dict[str, str], folder: str, output: str, errors: str) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0)
    os.dup2(os.open(output, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY) if errors else 1, 2)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    ALIASES["custom"] = "workers.celery_host.pool:TaskPool"  # Celery read the environment when it was imported
    multiprocessing.current_process().daemon = False  # it may start others
    sys.argv = [command.partition(".")[0], *args]
    if (main := getattr(import_module(command), "main", None)) is None:
        runpy.run_module(command, run_name="__main__", alter_sys=True)
    else:
        sys.exit(main())
