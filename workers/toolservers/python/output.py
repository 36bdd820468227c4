"""Reads what a sandbox prints, and keeps a limited part of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024
NOTE_BYTES = 64
"""The most bytes that a note about left-out text adds."""
DRAIN_READS = 64
"""Reads that empty a full pipe; a writer that never stops must not hold up `drain`."""


class TruncatedOutput:
    """Keeps the first and the last bytes of a stream, half of `limit` each, and counts the bytes in between."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    def text(self) -> str:
        """The kept text, with a note where bytes are left out."""
        tail = self._tail[-self._half :]
        missing = self.total - len(self._head) - len(tail)
        if missing <= 0:
            return (self._head + tail).decode(errors="replace")
        note = f"\n[... {missing} bytes left out ...]\n"
        return self._head.decode(errors="replace") + note + tail.decode(errors="replace")


def truncate_middle(text: str, limit: int) -> str:
    """The first and the last bytes of a text, `limit` in all, with a note between; the note does not count."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    first, last = (part.decode(errors="replace") for part in (data[: limit // 2], data[-(limit // 2) :]))
    return f"{first}\n[... the middle is left out ...]\n{last}"


class PipeReader:
    """Reads a pipe as data arrives, passes the data to `on_data`, and closes the pipe at its end."""

    def __init__(self, descriptor: int, on_data: Callable[[bytes], None]) -> None:
        self._descriptor = descriptor
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def read_rest(self) -> None:
        """Reads what is in the pipe now."""
        for _ in range(DRAIN_READS):
            if not self._read():
                return

    def close(self) -> None:
        """Closes the pipe. May be called twice."""
        if not self.ended.is_set():
            self.ended.set()
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _read(self) -> bool:
        """Reads once; returns whether there was data."""
        if self.ended.is_set():
            return False
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self.close()
        return bool(data)
