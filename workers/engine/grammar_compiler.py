"""Compiles grammars within limits: a program of its own, which a worker starts and the kernel ends.

It loads xgrammar and a vocabulary once. Each job has a child of its own, so one that takes too much dies alone. Some
children are forked ahead, so that a job waits for no fork. A job and its answers are lines of JSON, on a socket of
their own, which the worker sends along. When the worker closes it, or ends, the child is killed.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.protocol.types import Json
from config.process import die_with_parent
from workers.engine.grammar_walk import MASK_SECONDS, PLAIN_STEPS, STEPS, WALKS, Walker
from workers.engine.json_grammar import in_json_string
from workers.engine.schemas.grammar import schema_grammar
from workers.engine.schemas.tags import held

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
MAX_DEPTH = 10_000
"""Calls of Python in each other: a schema of a hundred levels takes a thousand."""
SPARES = 2
"""Children that wait for a job: a request has two, one for its schemas, and one for the tag that is made of them."""
ENDED = "ended"
"""The key of a job's last line, with the exit status of its child."""
_CHEAPER = "use fewer alternatives that begin alike, and no rule with two meanings"

Compile = Callable[[str], Mapping[str, Any]]
"""Makes an answer of a source's text."""


def main() -> None:
    """The one argument is the worker's process id; stdin is a socket to it, which has the vocabulary as a line."""
    die_with_parent(int(sys.argv[1]))
    control = socket.socket(fileno=0)
    with control.makefile("rb") as stream:
        compilers, seconds = _compilers(stream.readline().decode())
    gc.collect()
    gc.freeze()  # the children share these pages
    control.sendall(bytes([seconds]))
    _Forks(control, compilers, seconds).serve()


def _compilers(vocabulary: str) -> tuple[Mapping[str, Compile], int]:
    """By the kind of source (`workers.engine.grammar_probe.Source`), and the CPU seconds for a tag."""
    import xgrammar  # takes seconds: it imports torch

    tokens = xgrammar.TokenizerInfo.deserialize_json(vocabulary)
    threads = max(1, min((os.cpu_count() or 1) // 4, MAX_THREADS))
    # with its cache, as vLLM: xgrammar has faults with it alone
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=threads, cache_enabled=True)
    walker = Walker(xgrammar, tokens)

    def schema(text: str) -> Mapping[str, Any]:
        schema_grammar(json.loads(text))
        return {}

    def printed(format_: Json) -> str:
        return str(xgrammar.Grammar.from_structural_tag({"type": "structural_tag", "format": format_}))

    def tag(text: str) -> Mapping[str, Any]:
        made = json.dumps(held(json.loads(text), printed))
        compiled = compiler.compile_structural_tag(made)
        if compiled.memory_size_bytes > COMPILED_BYTES:
            raise MemoryError
        if walker.is_dear(compiled):
            raise ValueError(f"each token would take more than {1000 * MASK_SECONDS:.0f} ms to check; {_CHEAPER}")
        return {"ebnf": made, "bytes": compiled.memory_size_bytes}

    compilers = {
        "schema": schema,
        "lark": lambda text: {"ebnf": in_json_string(str(xgrammar.Grammar.from_lark(text)))},
        "regex": lambda text: {"ebnf": in_json_string(str(xgrammar.Grammar.from_regex(text)))},
        "tag": tag,
    }
    walks = int((PLAIN_STEPS + STEPS * WALKS) * MASK_SECONDS) + 1
    return compilers, min(CPU_SECONDS + tokens.vocab_size // TOKENS_A_SECOND + walks, 255)


@dataclass(slots=True)
class _Child:
    pid: int
    line: socket.socket
    """Where it gets the socket of its job. Its end closes the line."""
    job: socket.socket | None = None


class _Forks:
    """A child for each job, and some that wait for one."""

    def __init__(self, control: socket.socket, compilers: Mapping[str, Compile], seconds: int) -> None:
        self._control = control
        self._seconds = seconds
        self._compilers = compilers
        self._children: list[_Child] = []

    def serve(self) -> None:
        """Returns when the worker closes its end."""
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
        """Waits. The sockets whose other end is closed, and the worker's if it sends a job."""
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
                _work(theirs, self._compilers, self._seconds)
            finally:
                os._exit(0)
        theirs.close()
        self._children.append(child := _Child(pid, ours))
        return child

    def _bury(self, child: _Child) -> None:
        """Tells the worker how the child of a job ended, and has another one ready."""
        _, status = os.waitpid(child.pid, 0)
        child.line.close()
        self._children.remove(child)
        if child.job is not None:
            ended = json.dumps({ENDED: os.waitstatus_to_exitcode(status)})
            with child.job, suppress(OSError):  # the worker may have left
                child.job.send(f"\n{ended}\n".encode(), socket.MSG_DONTWAIT)
        self._fork_ahead()


def _work(line: socket.socket, compilers: Mapping[str, Compile], tag_seconds: int) -> None:
    """Waits for the socket of a job, reads a list of (kind, text) from it, and writes a line for each, in order."""
    os.nice(NICENESS)
    sys.setrecursionlimit(MAX_DEPTH)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _address_space() + MEMORY_BYTES)
    _, [job_fd], _, _ = socket.recv_fds(line, 1, 1)
    _limit(resource.RLIMIT_CPU, CPU_SECONDS)
    signal.alarm(WALL_SECONDS)
    job = socket.socket(fileno=job_fd)
    with job.makefile("rb") as asked, job.makefile("wb") as answers:
        sources = json.loads(asked.readline() or b"[]")
        if any(kind == "tag" for kind, _ in sources):
            _limit(resource.RLIMIT_CPU, tag_seconds)
        for kind, text in sources:
            answers.write(json.dumps(_answer(compilers[kind], text)).encode() + b"\n")
            answers.flush()


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
