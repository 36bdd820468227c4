"""Programs: start, output line by line, stop, and the end of their process groups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.local import launcher
from config.process import command_of

KEPT_LINES = 40
MAX_LINE_BYTES = 64 * 1024
"""A longer line is split into several."""

REST_SECONDS = 1.0
"""How long the output of a program that has ended may take: a process outside of its group may have it still."""

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
    """File descriptors (locks) that the program has, too."""
    remove: tuple[Path, ...] = ()
    """Folders to remove at the end."""

    @property
    def command(self) -> list[str]:
        """The command that becomes the program."""
        argv = [*command_of(launcher.__name__), f"--runner={os.getpid()}", f"--stop={int(self.stop_signal)}"]
        argv += [f"--user={self.user}"] if self.user else []
        return [*argv, "--", *self.argv]


class Child:
    """One running program, the leader of a process group. Make it with `Child.start`.

    If this process dies, the kernel sends the program its stop signal. It does so, too, once the thread ends that
    started the program.
    """

    def __init__(self, program: Program, process: asyncio.subprocess.Process, output: int, on_line: OnLine) -> None:
        """`output` is the end of a pipe that the program writes to."""
        self._program = program
        self._process = process
        self._deadline: asyncio.TimerHandle | None = None
        self._ended = asyncio.create_task(self._follow(output, on_line))
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)

    @classmethod
    async def start(cls, program: Program, on_line: OnLine) -> Child:
        """Starts the program; `on_line` gets each line of its stdout and stderr."""
        read, write = os.pipe()
        try:  # With asyncio's own pipe `Process.wait` would return only once no process has it any more.
            process = await asyncio.create_subprocess_exec(
                *program.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write,
                stderr=asyncio.subprocess.STDOUT,
                env=program.env,
                cwd=program.cwd,
                pass_fds=program.hold,
                start_new_session=True,
            )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        return cls(program, process, read, on_line)

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self._process.pid

    @property
    def last_line(self) -> str:
        """The last line of output that is not blank; empty if there is none."""
        return next((line for line in reversed(self.last_lines) if line.strip()), "")

    async def wait(self) -> int:
        """Waits until the program has ended and its group is killed; the exit status, negative for a signal. May be
        cancelled."""
        return await asyncio.shield(self._ended)

    def drain(self) -> None:
        """Sends the stop signal to the program, which may take its own time; `stop` sends it once more."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(self._program.stop_signal)

    def stop(self) -> None:
        """Sends the stop signal to the program, and after its grace SIGKILL to the whole group."""
        self.drain()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(self._program.grace, self.kill)

    def kill(self) -> None:
        """Sends SIGKILL to the whole group."""
        if self._process.returncode is None:  # Else another group may have the number.
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def stop_and_wait(self) -> int:
        """`stop`, then `wait`."""
        self.stop()
        return await self.wait()

    async def _follow(self, output: int, on_line: OnLine) -> int:
        stream, pipe = asyncio.StreamReader(), os.fdopen(output, "rb", 0)
        connect = asyncio.get_running_loop().connect_read_pipe
        transport, _ = await connect(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        reading = asyncio.create_task(self._read_lines(stream, on_line))
        try:
            status = await self._process.wait()
            self._kill_group()  # what is left of it
            await asyncio.wait([reading], timeout=REST_SECONDS)
            return status
        finally:
            reading.cancel()
            transport.close()
            pipe.close()  # The transport would do so later: the loop may be closed then.
            if self._deadline is not None:
                self._deadline.cancel()
            for folder in self._program.remove:
                shutil.rmtree(folder, ignore_errors=True)

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
