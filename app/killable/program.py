"""The program's side: it runs jobs within limits, and the kernel ends those that take more.

A process of Longhaul starts it (jobs.py). It loads what it needs once. Each job has a child of its own, so one that
takes too much dies alone; and it can open no file and no socket. Some children are forked ahead, so that a job waits
for no fork. A job and its answers are on a socket of their own, which the other process sends along. When that process
closes it, or ends, the child is killed.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from config.process import die_with_parent

NICENESS = 10
SPARES = 2
"""Children that wait for a job."""
_JOB, _LINE = 0, 3
"""The files that a child has, beside its outputs, which are nowhere."""
ENDED = "ended"
"""The key of a job's last line, with the exit status of its child."""

Work = Callable[[BinaryIO, BinaryIO], None]
"""Reads a job, and writes its answers: lines of JSON. It runs in a child."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of one job."""

    cpu_seconds: int
    wall_seconds: int
    memory_bytes: int
    """Memory of a job, beyond that of the program."""


def connected() -> socket.socket:
    """Returns the socket to the process that started this program, whose id is the one argument; both end together."""
    die_with_parent(int(sys.argv[1]))
    return socket.socket(fileno=0)


def serve(control: socket.socket, work: Work, limits: JobLimits, greeting: bytes = b"\1") -> None:
    """Says with `greeting`, one byte, that the program is ready. Returns when the other process closes its end."""
    gc.collect()
    gc.freeze()  # the children share these pages
    control.sendall(greeting)
    _Forks(control, work, limits).serve()


def limit_cpu(seconds: int) -> None:
    """Sets how much CPU time the running job may take in all."""
    _limit(resource.RLIMIT_CPU, seconds)


@dataclass(slots=True)
class _Child:
    pid: int
    line: socket.socket
    """The socket over which the child gets the socket of its job. It closes when the child ends."""
    job: socket.socket | None = None


class _Forks:
    """A child for each job, and some that wait for one."""

    def __init__(self, control: socket.socket, work: Work, limits: JobLimits) -> None:
        self._control = control
        self._work = work
        self._limits = limits
        self._children: list[_Child] = []

    def serve(self) -> None:
        self._fork_ahead()
        while True:
            ready = self._ready()
            for child in list(self._children):
                if child.job is not None and child.job.fileno() in ready:  # nobody waits for it any more
                    child.job.close()
                    os.kill(child.pid, signal.SIGKILL)
                if child.line.fileno() in ready:
                    self._bury(child)
            if self._control.fileno() in ready:
                data, fds, _, _ = socket.recv_fds(self._control, 1, 1)
                if not data:
                    return
                for fd in fds:
                    self._start(socket.socket(fileno=fd))

    def _ready(self) -> set[int]:
        """Waits. The sockets whose other end is closed, and the process' if it sends a job."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        for end in self._ends():
            poll.register(end, 0)  # the kernel always tells when the other end is closed
        return {fd for fd, _ in poll.poll()}

    def _ends(self) -> Iterator[socket.socket]:
        """The sockets of the children, as far as they are open."""
        for child in self._children:
            yield from (end for end in (child.line, child.job) if end is not None and end.fileno() >= 0)

    def _start(self, job: socket.socket) -> None:
        while True:
            child = next((child for child in self._children if child.job is None), None) or self._fork()
            try:
                socket.send_fds(child.line, [b"\0"], [job.fileno()])
            except OSError:  # somebody has killed it
                self._bury(child)
            else:
                child.job = job
                return

    def _fork_ahead(self) -> None:
        while sum(child.job is None for child in self._children) < SPARES:
            self._fork()

    def _fork(self) -> _Child:
        parent, (ours, theirs) = os.getpid(), socket.socketpair()
        pid = os.fork()
        if not pid:
            try:
                die_with_parent(parent)
                for end in (ours, self._control, *self._ends()):  # else nobody would see another child's end
                    end.close()
                _run(theirs, self._work, self._limits)
            finally:
                os._exit(0)
        theirs.close()
        self._children.append(child := _Child(pid, ours))
        return child

    def _bury(self, child: _Child) -> None:
        """Tells the process how the child of a job ended, and has another one ready."""
        _, status = os.waitpid(child.pid, 0)
        child.line.close()
        self._children.remove(child)
        if child.job is not None:
            ended = json.dumps({ENDED: os.waitstatus_to_exitcode(status)})
            with child.job, suppress(OSError):  # the process may have left
                child.job.send(f"\n{ended}\n".encode(), socket.MSG_DONTWAIT)
        self._fork_ahead()


def _run(line: socket.socket, work: Work, limits: JobLimits) -> None:
    """Waits for the socket of a job, and runs it within the limits."""
    os.nice(NICENESS)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _address_space() + limits.memory_bytes)
    _, [job_fd], _, _ = socket.recv_fds(line, 1, 1)
    _keep_only(job_fd, line)
    limit_cpu(limits.cpu_seconds)
    signal.alarm(limits.wall_seconds)
    job = socket.socket(fileno=_JOB)
    with job.makefile("rb") as asked, job.makefile("wb") as answers:
        work(asked, answers)


def _keep_only(job_fd: int, line: socket.socket) -> None:
    """From here on the child can open nothing: no socket, and no file, such as the environment of another process."""
    os.dup2(job_fd, _JOB)
    os.dup2(line.detach(), _LINE)
    os.closerange(_LINE + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # not even in the place of one that it closes


def _limit(which: int, value: int) -> None:
    """Sets the soft limit, which is what the kernel enforces. macOS knows no limit of address space."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(which)
        resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _address_space() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return resource.RLIM_INFINITY // 2
    return pages * resource.getpagesize()
