"""Knowing that the server is about to stop, while streams are still open.

uvicorn waits for every connection before it tells the app (ASGI's lifespan.shutdown), and a stream that does not know
would go on for hours. The signal is the only earlier sign.
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
    """An event that is set when the server begins to stop."""

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
def set_by_signals(shutdown: Shutdown) -> Iterator[None]:
    """Sets `shutdown` on SIGTERM and SIGINT, and then runs the handlers that were installed before.

    Python runs signal handlers in the main thread only: a server in another thread has to call `shutdown.set` itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    earlier = {number: signal.getsignal(number) for number in SIGNALS}

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(shutdown.set)
        handler = earlier[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler is signal.SIG_DFL:
            signal.signal(number, handler)
            signal.raise_signal(number)

    for number in SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            if signal.getsignal(number) is on_signal:
                signal.signal(number, handler)
