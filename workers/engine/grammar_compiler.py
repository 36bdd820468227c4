"""Compiles grammars within limits: a program of its own, which a worker starts and the kernel ends.

It loads xgrammar and a vocabulary once. Each job has a child of its own, so one that takes too much dies alone. Some
children are forked ahead, so that a job waits for no fork. Job and answers go over a socket of their own, which the
worker sends along; a worker that closes it has the child killed. So does the end of the worker.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from config.process import die_with_parent
from workers.engine.json_grammar import in_json_string

CPU_SECONDS = 2
"""CPU time for one job, to read what callers sent. A hundred strict tools take a few hundredths of a second."""
TOKENS_A_SECOND = 10_000
"""For each so many tokens of the vocabulary, compiling a tag gets a second more. With 200,000 tokens, an ordinary
`maxLength` takes up to 9 seconds."""
MAX_THREADS = 4
WALL_SECONDS = 60
MEMORY_BYTES = 2**29
"""What a job may add to the memory of its process."""
COMPILED_BYTES = 2**26
"""What a compiled grammar may hold: the engine keeps one for each running response."""
NICENESS = 10
SPARES = 2
"""Children that wait for a job: a request has two, one for its schemas, and one for the tag that is made of them."""
DIED = 2**32 - 1
"""In place of a frame's length: the child has ended, and its status follows."""
LENGTH = struct.Struct(">I")
STATUS = struct.Struct(">i")

Compile = Callable[[str], Mapping[str, Any]]
"""Makes an answer of a source's text."""


def frame(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


def write_frame(stream: IO[bytes], data: bytes) -> None:
    stream.write(frame(data))
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None


def main() -> None:
    """The one argument is the worker's process id; stdin is a socket to it."""
    die_with_parent(int(sys.argv[1]))
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # libraries may print grammars, which are the callers'
        os.dup2(null, standard)
    with control.makefile("rb") as stream:
        vocabulary = read_frame(stream)
    if vocabulary is None:
        return
    compilers, seconds = _compilers(vocabulary.decode())
    gc.collect()
    gc.freeze()  # the children share these pages
    control.sendall(bytes([seconds]))
    _Forks(control, compilers, seconds).serve()


def _compilers(vocabulary: str) -> tuple[Mapping[str, Compile], int]:
    """By the kind of source (`workers.engine.grammar_probe.Source`), and the CPU seconds for a tag."""
    import xgrammar  # takes seconds: it imports torch

    tokens = xgrammar.TokenizerInfo.deserialize_json(vocabulary)
    threads = max(1, min((os.cpu_count() or 1) // 4, MAX_THREADS))
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=threads, cache_enabled=False)

    def schema(text: str) -> Mapping[str, Any]:
        xgrammar.Grammar.from_json_schema(text)
        return {}

    def tag(text: str) -> Mapping[str, Any]:
        size = compiler.compile_structural_tag(text).memory_size_bytes
        if size > COMPILED_BYTES:
            raise MemoryError
        return {"bytes": size}

    compilers = {
        "schema": schema,
        "lark": lambda text: {"ebnf": in_json_string(str(xgrammar.Grammar.from_lark(text)))},
        "regex": lambda text: {"ebnf": in_json_string(str(xgrammar.Grammar.from_regex(text)))},
        "tag": tag,
    }
    return compilers, min(CPU_SECONDS + tokens.vocab_size // TOKENS_A_SECOND, 255)


class _Forks:
    """A child for each job, and some that wait for one."""

    def __init__(self, control: socket.socket, compilers: Mapping[str, Compile], seconds: int) -> None:
        self._control = control
        self._seconds = seconds
        self._compilers = compilers
        self._jobs: dict[int, socket.socket] = {}
        """The sockets of the children at work, by process id."""
        self._spares: dict[int, socket.socket] = {}
        """Of the children that wait: where each gets the socket of its job."""
        self._poll = select.poll()
        self._woken, waker = socket.socketpair()
        self._woken.setblocking(False)
        waker.setblocking(False)
        self._waker = waker

    def serve(self) -> None:
        """Returns when the worker closes its end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno())
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        self._fork_ahead()
        while True:
            ready = {fd for fd, _ in self._poll.poll()}
            self._kill_left(ready)
            if self._woken.fileno() in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._reap()
                self._fork_ahead()
            if self._control.fileno() in ready:
                data, fds, _, _ = socket.recv_fds(self._control, 1, 1)
                if not data:
                    return
                for fd in fds:
                    self._start(socket.socket(fileno=fd))

    def _start(self, job: socket.socket) -> None:
        while True:
            if not self._spares:
                self._fork()
            pid = next(iter(self._spares))
            with self._spares.pop(pid) as line, suppress(OSError):  # somebody may have killed it
                socket.send_fds(line, [b"\0"], [job.fileno()])
                break
        self._jobs[pid] = job
        self._poll.register(job, 0)  # the kernel always tells when the other end is closed

    def _fork_ahead(self) -> None:
        while len(self._spares) < SPARES:
            self._fork()

    def _fork(self) -> None:
        parent, (ours, theirs) = os.getpid(), socket.socketpair()
        pid = os.fork()
        if not pid:
            try:
                die_with_parent(parent)
                self._leave(ours)
                _work(theirs, self._compilers, self._seconds)
            finally:
                os._exit(0)
        theirs.close()
        self._spares[pid] = ours

    def _leave(self, ours: socket.socket) -> None:
        """Closes the parent's sockets in the child: otherwise the worker would not see another child's end."""
        signal.set_wakeup_fd(-1)
        for each in (ours, self._control, self._woken, self._waker, *self._jobs.values(), *self._spares.values()):
            each.close()

    def _kill_left(self, ready: set[int]) -> None:
        """Kills the children that nobody waits for any more."""
        for pid, job in self._jobs.items():
            if job.fileno() in ready:
                self._poll.unregister(job)
                job.close()
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with suppress(ChildProcessError):  # there are no more
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                self._bury(*found)

    def _bury(self, pid: int, status: int) -> None:
        """Tells the worker how the child of a job ended."""
        if (line := self._spares.pop(pid, None)) is not None:
            line.close()
        job = self._jobs.pop(pid, None)
        if job is None or job.fileno() < 0:
            return
        self._poll.unregister(job)
        with job, suppress(OSError):  # the worker may have left
            job.send(LENGTH.pack(DIED) + STATUS.pack(os.waitstatus_to_exitcode(status)), socket.MSG_DONTWAIT)


def _work(line: socket.socket, compilers: Mapping[str, Compile], tag_seconds: int) -> None:
    """Waits for the socket of a job, reads a list of (kind, text) from it, and writes an answer for each, in order."""
    os.nice(NICENESS)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _address_space() + MEMORY_BYTES)
    _, [job_fd], _, _ = socket.recv_fds(line, 1, 1)
    _limit(resource.RLIMIT_CPU, CPU_SECONDS)
    signal.alarm(WALL_SECONDS)
    job = socket.socket(fileno=job_fd)
    with job.makefile("rb") as asked, job.makefile("wb") as answers:
        sources = json.loads(read_frame(asked) or b"[]")
        if any(kind == "tag" for kind, _ in sources):
            _limit(resource.RLIMIT_CPU, tag_seconds)
        for kind, text in sources:
            write_frame(answers, json.dumps(_answer(compilers[kind], text)).encode(errors="replace"))


def _answer(compile_: Compile, text: str) -> Mapping[str, Any]:
    try:
        return compile_(text)
    except Exception as error:  # xgrammar's C++ errors
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            os.abort()
        said = str(error) if isinstance(error, (ValueError, RuntimeError)) else ""
        return {"refusal": " ".join((said or f"{type(error).__name__}: {error}").split())}


def _limit(which: int, value: int) -> None:
    """Sets the soft limit, which is what the kernel enforces. macOS knows no limit of address space."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(which)
        resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _address_space() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return resource.RLIM_INFINITY - MEMORY_BYTES
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
