"""What comes out of a sandbox, as far as anyone wants it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024
NOTE_BYTES = 64
"""As much as a note about what is left out may add to a text."""
DRAIN_READS = 64
"""A pipe holds no more; what writes on and on is not waited for."""


class Kept:
    """The first and the last bytes of a stream: half of `limit` each, and how much was between them."""

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
        """With a note where something is left out."""
        tail = self._tail[-self._half :]
        missing = self.total - len(self._head) - len(tail)
        if missing <= 0:
            return (self._head + tail).decode(errors="replace")
        note = f"\n[... {missing} bytes left out ...]\n"
        return self._head.decode(errors="replace") + note + tail.decode(errors="replace")


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of a text that may be cut already, with a note; the note counts nothing."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    first, last = (part.decode(errors="replace") for part in (data[: limit // 2], data[-(limit // 2) :]))
    return f"{first}\n[... the middle is left out ...]\n{last}"


class PipeReader:
    """Reads a pipe whenever there is something, and closes it at its end."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        self._descriptor = descriptor
        self._take = take
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def drain(self) -> None:
        """Takes what is in the pipe at this moment."""
        for _ in range(DRAIN_READS):
            if not self._read():
                return

    def close(self) -> None:
        """May be called again."""
        if not self.ended.is_set():
            self.ended.set()
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _read(self) -> bool:
        if self.ended.is_set():
            return False
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()
        return bool(data)
