"""How the server stops.

    serving --SIGTERM, SIGINT--> draining: foreground answers may go on; nothing else does, and nobody connects
    draining --a second signal, or the grace is over--> foreground responses are cancelled, and their clients told
             --a third signal--> the process ends at once
             --no connection is left--> the server stops

uvicorn waits for every connection before it tells the app (ASGI's lifespan.shutdown), and a stream that does not know
would go on for hours. The signal is the only earlier sign.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

log = logging.getLogger("longhaul.api")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
REPEAT_SECONDS = 2.0
"""Signals that follow each other sooner are one: systemd and the parent process may both send it."""
END_SECONDS = 5.0
"""How long the answers may take that end with the server: those of foreground responses after their cancellation, and
all others after the signal."""


class Shutdown:
    """The shutdown of one server, for whatever has to end before it."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self.begun = asyncio.Event()
        """The server drains."""
        self.over = asyncio.Event()
        """The grace of foreground answers is over."""

    def begin(self) -> None:
        """Begins to drain, once."""
        if not self.begun.is_set():
            log.info("stopping; foreground answers have %g s to end", self._grace_seconds)
            self.begun.set()
            asyncio.get_running_loop().call_later(self._grace_seconds, self.over.set)

    def end_grace(self) -> None:
        self.over.set()


@contextlib.contextmanager
def begun_by_signals(shutdown: Shutdown) -> Iterator[None]:
    """Lets SIGTERM and SIGINT begin the shutdown; the first one also runs the handler that was installed before.

    Python runs signal handlers in the main thread only: a server in another thread has to call `begin` itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    earlier = {number: signal.getsignal(number) for number in SIGNALS}
    count, counted_at = 0, float("-inf")

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal count, counted_at
        if time.monotonic() < counted_at + REPEAT_SECONDS:
            return
        count, counted_at = count + 1, time.monotonic()
        handler = earlier[signal.Signals(number)]
        if count == 2:
            loop.call_soon_threadsafe(shutdown.end_grace)
        elif count == 1 and callable(handler):
            loop.call_soon_threadsafe(shutdown.begin)
            handler(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            if signal.getsignal(number) is on_signal:
                signal.signal(number, handler)
