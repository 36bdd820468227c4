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
MAX_LINE_BYTES = 64 * 1024
"""A longer line is split into several."""

OnLine = Callable[[str], None]
"""Takes one line of output, without its line end."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to run. `env` is the whole environment; `grace` is the seconds from the stop signal to SIGKILL."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    stop_signal: int = signal.SIGTERM
    grace: float = 10.0
    user: str | None = None
    """`UID:GID` to run as; for root only."""
    hold: tuple[int, ...] = ()
    """File descriptors (locks) that stay open until the whole process tree has ended."""
    remove: tuple[Path, ...] = ()
    """Folders to remove at the end."""

    def guardian_command(self, lifeline: int) -> list[str]:
        """The command that runs the program behind a guardian."""
        argv = [*command_of(guardian.__name__), f"--lifeline={lifeline}", f"--stop={int(self.stop_signal)}"]
        argv += [f"--grace={self.grace}", *(f"--hold={fd}" for fd in self.hold)]
        argv += [f"--remove={folder}" for folder in self.remove]
        argv += [f"--user={self.user}"] if self.user else []
        return [*argv, "--", *self.argv]


class Child:
    """One running program; it cannot outlive this process. Make it with `Child.start`."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int, on_line: OnLine) -> None:
        self._process = process
        self._lifeline = lifeline
        self._ended = asyncio.create_task(self._follow(on_line))
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)

    @classmethod
    async def start(cls, program: Program, on_line: OnLine) -> Child:
        """Starts the program; `on_line` gets each line of its stdout and stderr."""
        read, write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *program.guardian_command(read),
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
        return cls(process, write, on_line)

    @property
    def pid(self) -> int:
        """Process id of the guardian."""
        return self._process.pid

    @property
    def last_line(self) -> str:
        """The last line of output that is not blank; empty if there is none."""
        return next((line for line in reversed(self.last_lines) if line.strip()), "")

    async def wait(self) -> int:
        """Waits until the whole process tree has ended; the exit status, negative for a signal. May be cancelled."""
        return await asyncio.shield(self._ended)

    def drain(self) -> None:
        """Sends the stop signal to the main process, which may take its own time; `stop` sends it once more."""
        self._signal(signal.SIGUSR2)

    def stop(self) -> None:
        """Sends the stop signal to the main process, and after its grace SIGKILL to the rest of the tree."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL to the whole tree."""
        self._signal(signal.SIGUSR1)

    async def stop_and_wait(self) -> int:
        """`stop`, then `wait`."""
        self.stop()
        return await self.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _follow(self, on_line: OnLine) -> int:
        try:
            assert self._process.stdout is not None
            await self._read_lines(self._process.stdout, on_line)
            return await self._process.wait()
        finally:
            os.close(self._lifeline)

    async def _read_lines(self, stream: asyncio.StreamReader, on_line: OnLine) -> None:
        rest = b""
        while data := await stream.read(MAX_LINE_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) >= MAX_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._add_line(line, on_line)
        if rest:
            self._add_line(rest, on_line)

    def _add_line(self, line: bytes, on_line: OnLine) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.last_lines.append(text)
        on_line(text)


async def run(program: Program, on_line: OnLine) -> tuple[int, str]:
    """Runs a program to its end: exit status and last line. If the caller is cancelled, the program is stopped."""
    child = await Child.start(program, on_line)
    try:
        return await child.wait(), child.last_line
    except asyncio.CancelledError:
        await child.stop_and_wait()
        raise
