"""The other side: starts the program (program.py), gives it jobs, and learns how they ended."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from app.heavy import off_loop
from app.killable.program import ENDED
from config.process import deaf_children

log = logging.getLogger("longhaul.killable")

AT_A_LIMIT = frozenset({-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGSEGV})
"""How a job ends at a limit of its own: CPU time, memory, the stack."""
TOO_LATE = -signal.SIGALRM
"""How a job ends that got too little CPU time within its limit of time: that says nothing about it."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A process that forks must have no other thread."""
_LIBRARIES = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")
"""Where Python and its libraries may be. A program gets nothing else of the environment, which has secrets."""


class ProgramClosed(Exception):
    """The program was ended, and starts no more."""


class ProgramFailed(Exception):
    """The program does not start."""


class KillableProgram:
    """One program, which is started with its first job, and again if it dies.

    `code` is what Python runs; `greeting` makes what it reads first, once, in a thread.
    """

    def __init__(self, name: str, code: Callable[[], str], greeting: Callable[[], bytes] = bytes) -> None:
        self._name = name
        self._code = code
        self._make_greeting = greeting
        self._greeting: bytes | None = None
        self._control: socket.socket | None = None
        # one thread: it starts one process at a time, which dies with the thread
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name.replace(" ", "-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.is_closed = False
        self.ready = 0
        """The byte with which the program said that it is ready."""

    def start(self) -> None:
        """Returns at once; the first job waits for the program."""
        self._thread.submit(self._running)

    def close(self) -> None:
        """Ends the program. Whoever waits for it gets ProgramClosed. Blocks."""
        self.is_closed = True
        if (process := self.process) is not None:
            process.kill()
        self._thread.submit(self._end).result()
        self._thread.shutdown()

    async def ask(
        self, job: AsyncIterable[bytes], answers: int, most_bytes: int
    ) -> tuple[list[Mapping[str, Any]], int | None]:
        """Returns the first of `answers` answers, of `most_bytes` each at most, and, if they are fewer, how the job
        ended; None: it is not known.

        Raises ProgramClosed, ProgramFailed, and what `job` raises. A caller that is cancelled ends its job.
        """
        if self.is_closed:  # the thread takes nothing more
            raise ProgramClosed
        control = await asyncio.wrap_future(self._thread.submit(self._running))
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=most_bytes)
        found: list[Mapping[str, Any]] = []
        try:
            with theirs:
                socket.send_fds(control, [b"\0"], [theirs.fileno()], socket.MSG_DONTWAIT)
            with suppress(ConnectionError):  # it has ended, or answers without the rest
                async for piece in job:
                    writer.write(piece)
                    await writer.drain()
            while len(found) < answers and (line := await reader.readline()):
                with suppress(ValueError):  # the child ended in the middle of a line
                    answer = await off_loop(partial(json.loads, line), len(line))
                    if ENDED in answer:
                        return found, answer[ENDED]
                    found.append(answer)
        except OSError:
            pass
        finally:
            writer.transport.abort()
        return found, None

    def _running(self) -> socket.socket:
        """A socket to the program, which is started if it does not run. Raises ProgramFailed or ProgramClosed."""
        if self.is_closed:
            raise ProgramClosed
        if self._control is not None and self.process is not None and self.process.poll() is None:
            return self._control
        self._end()
        if self._greeting is None:
            self._greeting = self._make_greeting()
        log.info("starting the program for %s", self._name)
        control, theirs = socket.socketpair()
        with theirs, deaf_children():
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", self._code(), str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # libraries print what callers sent
                env={**{name: os.environ[name] for name in _LIBRARIES if name in os.environ}, **_ONE_THREAD},
            )
        self._control = control
        try:
            control.sendall(self._greeting)
            ready = control.recv(1)
        except OSError:
            ready = b""
        if not ready:
            self._end()
            raise ProgramFailed(f"the program for {self._name} does not start")
        self.ready = ready[0]
        return control

    def _end(self) -> None:
        process, self.process = self.process, None
        control, self._control = self._control, None
        if process is not None:
            process.kill()
            process.wait()
        if control is not None:
            control.close()
