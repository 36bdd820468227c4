"""Compiles grammars within limits: a program of its own, which a worker starts and the kernel ends.

It reads frames from stdin: a tokenizer's vocabulary (xgrammar's JSON), then structural tags. It writes a frame to
stdout when it is ready, and one for each tag: empty, or the compiler's complaint. A tag that takes too much CPU time or
memory ends the process; so does the end of its worker.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from config.process import die_with_parent

CPU_SECONDS = 10
"""CPU time for one grammar. A hundred strict tools take well under a second."""
WALL_SECONDS = 60
MEMORY_BYTES = 2 * 2**30
"""What a grammar may add to the memory of this process."""
NICENESS = 10
_RETIRE_BYTES = 512 * 2**20
"""This process ends after a grammar that took so much memory: allocators do not give all of it back."""
_LENGTH = struct.Struct(">I")


def write_frame(stream: IO[bytes], data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None


def main() -> None:
    """The one argument is the worker's process id."""
    die_with_parent(int(sys.argv[1]))
    os.nice(NICENESS)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print
    _serve(sys.stdin.buffer, output)


def _serve(tags: IO[bytes], output: IO[bytes]) -> None:
    vocabulary = read_frame(tags)
    if vocabulary is None:
        return
    import xgrammar  # takes seconds: it imports torch

    tokens = xgrammar.TokenizerInfo.deserialize_json(vocabulary.decode())
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _address_space() + MEMORY_BYTES)
    write_frame(output, b"")
    before = _peak_bytes()
    while (tag := read_frame(tags)) is not None:
        _limit(resource.RLIMIT_CPU, _cpu_seconds() + CPU_SECONDS)
        signal.alarm(WALL_SECONDS)
        complaint = ""
        try:
            compiler.compile_structural_tag(tag.decode())
        except Exception as error:  # xgrammar's C++ errors, and a MemoryError
            complaint = f"{type(error).__name__}: {error}"
        signal.alarm(0)
        write_frame(output, complaint.encode(errors="replace"))
        if _peak_bytes() - before > _RETIRE_BYTES:
            return


def _limit(which: int, value: int) -> None:
    """Sets the soft limit, which is what the kernel enforces. macOS knows no limit of address space."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(which)
        resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _cpu_seconds() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int(usage.ru_utime + usage.ru_stime) + 1


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _address_space() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return resource.RLIM_INFINITY - MEMORY_BYTES
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
