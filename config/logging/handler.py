"""The handler of every process: it writes lines to stderr, each at once, or several together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import sys
import threading
from collections.abc import Iterator

SECONDS = 0.05
"""How long a line waits for others."""
MAX_BYTES = select.PIPE_BUF
"""Lines of one write: a pipe takes so many in one piece, also where several processes write into it."""


class LineHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes each line at once. While it is `gathering`, lines of the loop's thread below WARNING wait for others.

    Whoever reads the lines wakes up for each write, and that costs more than the line itself. All lines are written in
    the order in which they were logged. (logging's MemoryHandler keeps records, and would write each one alone.)
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._is_timed = False
        self._waiting: list[str] = []
        self._bytes = 0

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Lets lines wait, for SECONDS at most, until the end of the block. The running loop writes them."""
        self._loop, self._thread, self._is_timed = asyncio.get_running_loop(), threading.get_ident(), False
        try:
            yield
        finally:
            self._loop = None
            self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + self.terminator
        except Exception:
            self.handleError(record)
            return
        size = len(line.encode(errors="replace"))
        if self._bytes + size > MAX_BYTES:
            self.flush()
        self._waiting.append(line)
        self._bytes += size
        if record.levelno >= logging.WARNING or not self._may_wait():
            self.flush()

    def flush(self) -> None:
        """Writes what waits. If nobody reads stderr any more, nobody can be told."""
        assert self.lock is not None
        with self.lock, contextlib.suppress(OSError, ValueError):
            text = "".join(self._waiting)
            self._waiting.clear()
            self._bytes = 0
            self.stream.write(text)
            self.stream.flush()

    def _may_wait(self) -> bool:
        """Whether the loop will write what waits."""
        if self._loop is None or threading.get_ident() != self._thread:
            return False
        if not self._is_timed:
            self._loop.call_later(SECONDS, self._end_wait)
            self._is_timed = True
        return True

    def _end_wait(self) -> None:
        self._is_timed = False
        self.flush()


@contextlib.contextmanager
def gathering_lines() -> Iterator[None]:
    """Lets the handlers of this process write the lines of the running loop together, until the end of the block."""
    with contextlib.ExitStack() as stack:
        for handler in logging.getLogger().handlers:
            if isinstance(handler, LineHandler):
                stack.enter_context(handler.gathering())
        yield
