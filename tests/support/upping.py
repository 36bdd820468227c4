"""A real `longhaul up` in a process of its own, with the test's Procfile."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from config.models import ServedModel
from tests.support import forks
from tests.support.forks import Forked
from tests.support.processes import alive, descendants
from tests.support.scripted import models_of
from tests.support.waiting import PAUSE, until_sync

LONGHAUL = [sys.executable, "-c", "from app.cli import main; main()"]
IN_TERMINAL = [
    *(sys.executable, "-c"),
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
]
"""Makes stdin the controlling terminal of a new session, so that Ctrl-C and a closed terminal send signals.

SIGHUP gets its default: nohup may run these tests."""
NAMED_SERVICES = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}
"""URLs of services, which `up` therefore does not start; nothing listens there."""


def served(name: str, engine: str = "vllm", **engine_args: Any) -> ServedModel:
    """A model as the models file has it."""
    return ServedModel(name, "org/model", f"model.{name}", engine, engine_args=engine_args)


class Up:
    """`longhaul up` on `folder`; leaves no process behind. `output` is its output so far."""

    def __init__(
        self,
        folder: Path,
        procfile: str,
        *args: str,
        env: dict[str, str] | None = None,
        models: tuple[str, ...] = ("demo",),
        terminal: bool = False,
    ) -> None:
        self.folder = folder
        (folder / "Procfile").write_text(procfile)
        (folder / "models.toml").write_text(models_of(*models))
        settings = {"LONGHAUL_HOME": str(folder / "home"), "LONGHAUL_MODELS": str(folder / "models.toml")}
        settings |= {"LONGHAUL_SHUTDOWN_GRACE_SECONDS": "0", "LONGHAUL_API_GRACE_SECONDS": "0"}
        self.output = ""
        self._seen: set[int] = set()
        command = [*(IN_TERMINAL if terminal else []), *LONGHAUL]
        self._master = -1
        self._hung_up = False
        slave = subprocess.PIPE
        if terminal:
            self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*command, "up", "--procfile", str(folder / "Procfile"), *args],
            stdin=slave if terminal else subprocess.DEVNULL,
            stdout=slave,
            stderr=slave if terminal else subprocess.STDOUT,
            env={**os.environ, **settings, **(env or {})},
            start_new_session=True,
        )
        if terminal:
            os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Up:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.ended()
        self.gone()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for_output(self, text: str, timeout: float = 60.0) -> str:
        """Waits until the output has `text`; returns the output."""
        until_sync(
            lambda: text in self.output or self.process.poll() is not None, timeout, f"{text!r} in {self.output}"
        )
        if self.process.poll() is not None:
            self._reader.join(10)
        assert text in self.output, self.output
        return self.output

    def written(self, name: str) -> str:
        """Waits until a process has written the file `name` in the folder; its text."""
        file = self.folder / name
        until_sync(lambda: file.exists() and file.read_text().endswith("\n"), what=lambda: f"{name}; {self.output}")
        return file.read_text().strip()

    def look(self) -> set[int]:
        """Records every process below; returns all recorded ones."""
        self._seen |= set(descendants(self.pid))
        return self._seen

    def close_terminal(self) -> None:
        """Closes the terminal, as by closing its window."""
        self._hung_up = True
        self._reader.join()  # the terminal stays open while a thread reads it
        os.close(self._master)
        self._master = -1

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ended(self, timeout: float = 60.0) -> int:
        """Waits for the end of the runner; its status."""
        status = self.process.wait(timeout)
        self._reader.join(10)
        if self._master >= 0:
            self.close_terminal()
        if self.process.stdout:
            self.process.stdout.close()
        return status

    def gone(self, timeout: float = 60.0) -> None:
        """Waits until every recorded process has ended."""
        until_sync(lambda: not any(alive(pid) for pid in self._seen), timeout, f"processes of {self._seen} to end")

    def _read(self) -> None:
        descriptor = self.process.stdout.fileno() if self.process.stdout else self._master
        while not self._hung_up:
            if not select.select([descriptor], [], [], PAUSE)[0]:
                continue
            try:
                data = os.read(descriptor, 65536)
            except OSError:
                return
            if not data:
                return
            self.output += data.decode(errors="replace")


def longhaul(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a `longhaul` command that is expected to end."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        forked = Forked(forks.LONGHAUL, args, {**os.environ, **(env or {})}, output, errors)
        try:
            status = forked.wait(60)
        finally:
            forked.send_signal(signal.SIGKILL)
        return subprocess.CompletedProcess(args, status, output.read_text(), errors.read_text())


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]
