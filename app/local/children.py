"""Programs that run behind a guardian: start, output line by line, stop, end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.local import guardian
from config.process import command_of

KEPT_LINES = 40
LONGEST_LINE = 64 * 1024
"""Bytes; a longer line is cut into several."""

Sink = Callable[[str], None]
"""Takes one line of output, without its end."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. `env` is the whole environment; `grace` is seconds from the stop signal to SIGKILL."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    stop_signal: int = signal.SIGTERM
    grace: float = 10.0
    user: str | None = None
    """`UID:GID`, as root only."""
    hold: tuple[int, ...] = ()
    """File descriptors (locks) that stay open until the whole tree is gone."""
    remove: tuple[Path, ...] = ()
    """Folders to remove at the end."""

    def behind_guardian(self, lifeline: int) -> list[str]:
        argv = [*command_of(guardian.__name__), f"--lifeline={lifeline}", f"--stop={int(self.stop_signal)}"]
        argv += [f"--grace={self.grace}", *(f"--hold={fd}" for fd in self.hold)]
        argv += [f"--remove={folder}" for folder in self.remove]
        argv += [f"--user={self.user}"] if self.user else []
        return [*argv, "--", *self.argv]


class Child:
    """One running program; it cannot outlive this process. Make it with `Child.start`."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int, sink: Sink) -> None:
        self._process = process
        self._lifeline = lifeline
        self._ended = asyncio.create_task(self._follow(sink))
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)

    @classmethod
    async def start(cls, program: Program, sink: Sink) -> Child:
        """Starts the program; its stdout and stderr go to `sink`."""
        read, write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *program.behind_guardian(read),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=program.env,
                cwd=program.cwd,
                pass_fds=(read, *program.hold),
                start_new_session=True,
            )
        except BaseException:
            os.close(write)
            raise
        finally:
            os.close(read)
        return cls(process, write, sink)

    @property
    def pid(self) -> int:
        """The guardian's."""
        return self._process.pid

    @property
    def last_line(self) -> str:
        return next((line for line in reversed(self.last_lines) if line.strip()), "")

    async def wait(self) -> int:
        """Waits until the whole tree is gone; the exit status, negative for a signal. May be cancelled and repeated."""
        return await asyncio.shield(self._ended)

    def stop(self) -> None:
        """The stop signal to the main process; after its grace, SIGKILL to what is left."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the whole tree."""
        self._signal(signal.SIGUSR1)

    async def stopped(self) -> int:
        """`stop`, then `wait`."""
        self.stop()
        return await self.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _follow(self, sink: Sink) -> int:
        try:
            assert self._process.stdout is not None
            await self._pump(self._process.stdout, sink)
            return await self._process.wait()
        finally:
            os.close(self._lifeline)

    async def _pump(self, stream: asyncio.StreamReader, sink: Sink) -> None:
        rest = b""
        while data := await stream.read(LONGEST_LINE):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) >= LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._take(line, sink)
        if rest:
            self._take(rest, sink)

    def _take(self, line: bytes, sink: Sink) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.last_lines.append(text)
        sink(text)


async def run(program: Program, sink: Sink) -> tuple[int, str]:
    """Runs a program to its end, and stops it where the caller is cancelled: (exit status, last line)."""
    child = await Child.start(program, sink)
    try:
        return await child.wait(), child.last_line
    except asyncio.CancelledError:
        await child.stopped()
        raise
