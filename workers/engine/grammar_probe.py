"""Tries grammars before the engine gets them: in a process that may die of them (`grammar_compiler.py`).

vLLM compiles a grammar in the engine's process, where nothing bounds it: a schema of 35 kB took 46 seconds and a
gigabyte. What the probe compiles within its limits, the engine compiles within them, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import select
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from cachetools import LRUCache

from config.process import CHECKOUT, deaf_children
from workers.engine import grammar_compiler
from workers.engine.base import EngineDead, EngineError, InvalidSampling
from workers.engine.grammar_compiler import CPU_SECONDS, MEMORY_BYTES, read_frame, write_frame

log = logging.getLogger("longhaul.engine")

SMALL = 4096
"""Characters of a structural tag that is not tried: its first token should not wait for a process."""
MAX_CHARS = 2**20
"""Characters of a structural tag."""
MAX_CACHED = 1024
"""Verdicts."""
_CODE = f"import sys; sys.path.append({str(CHECKOUT)!r}); from {grammar_compiler.__name__} import main; main()"
_TOO_COSTLY = (
    f"the grammar takes more than {CPU_SECONDS} seconds of CPU time or {MEMORY_BYTES // 2**30} GiB to compile; "
    "use fewer properties, shorter patterns or smaller ranges"
)


class GrammarProbe:
    """`vocabulary` makes the model's vocabulary (xgrammar's JSON); it is called once, in a thread."""

    def __init__(self, vocabulary: Callable[[], str]) -> None:
        self._vocabulary = vocabulary
        self._encoded: bytes | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # one thread: one grammar at a time, and the process dies with the thread that started it
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-probe")
        self._closed = False
        self._verdicts: LRUCache[bytes, str] = LRUCache(MAX_CACHED)

    async def check(self, tag: str, field: str) -> None:
        """Raises InvalidSampling, which names `field`, unless the tag compiles within the limits."""
        if len(tag) <= SMALL:
            return
        if len(tag) > MAX_CHARS:
            raise InvalidSampling(f"{field}: its grammar may have {MAX_CHARS} characters, but it has {len(tag)}")
        verdict = await asyncio.get_running_loop().run_in_executor(self._thread, self._verdict, tag.encode())
        if verdict:
            raise InvalidSampling(f"{field}: {verdict}")

    def close(self) -> None:
        """Ends the process. A check that waits raises EngineDead. Blocks."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        self._thread.submit(self._end).result()
        self._thread.shutdown()

    def _verdict(self, tag: bytes) -> str:
        """What is wrong with the tag; empty: nothing."""
        key = hashlib.sha256(tag).digest()
        if (verdict := self._verdicts.get(key)) is None:
            verdict = self._verdicts[key] = self._compile(tag)
        return verdict

    def _compile(self, tag: bytes) -> str:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_frame(process.stdin, tag)
            complaint = read_frame(process.stdout)
        except OSError:
            complaint = None
        if complaint is None:
            self._end()
            if self._closed:
                raise EngineDead("the engine is not running")
            return _TOO_COSTLY
        return f"it cannot be made a grammar: {' '.join(complaint.decode().split())}" if complaint else ""

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, started if there is none. Raises EngineError or EngineDead."""
        if self._closed:
            raise EngineDead("the engine is not running")
        if self._process is not None and self._process.poll() is None and not self._has_left(self._process):
            return self._process
        self._end()
        if self._encoded is None:
            self._encoded = self._vocabulary().encode()
        log.info("starting a process that tries grammars")
        with deaf_children():
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # xgrammar prints grammars, which are the callers'
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_frame(process.stdin, self._encoded)
            ready = read_frame(process.stdout)
        except OSError:
            ready = None
        if ready is None:
            self._end()
            raise EngineError("the process that tries grammars does not start")
        return process

    @staticmethod
    def _has_left(process: subprocess.Popen[bytes]) -> bool:
        """Whether the process has closed its output: it ends after a grammar that took much memory."""
        assert process.stdout is not None
        return bool(select.select([process.stdout], [], [], 0)[0])  # it writes nothing unasked

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was not sent
                    stream.close()
