"""Knowing that the server is about to stop, before it waits for the streams that are open.

uvicorn waits for every connection before it says so to the app (ASGI's lifespan.shutdown), and a stream that
nobody tells would go on for hours. Its signal handler is the only sign before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """An event: the server stops."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


@contextlib.contextmanager
def set_by_signals(stopping: Shutdown) -> Iterator[None]:
    """Hears SIGTERM and SIGINT before the handlers that are in place, which then run as ever.

    Signals reach the main thread only: a server that runs in another one has to set `stopping` by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    earlier = {number: signal.getsignal(number) for number in SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stopping.set)
        handler = earlier[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL:
            signal.signal(number, handler)
            signal.raise_signal(number)

    for number in SIGNALS:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            if signal.getsignal(number) is hear:
                signal.signal(number, handler)
