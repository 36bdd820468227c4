"""What connections of both kinds share: their client must take what is written for it."""

from __future__ import annotations

import asyncio
from typing import Any

from app.api.limits import Limits
from app.budget import OverBudget


class WriteDeadline:
    """Ends a connection whose client has taken nothing for too long; what it did not take is dropped.

    What waits for slow clients counts in one budget, too: beyond it a connection ends at once.
    """

    def __init__(self, transport: asyncio.Transport, limits: Limits) -> None:
        self._transport = transport
        self._seconds = limits.write_seconds
        self._waiting = limits.answers.lease()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._transport.abort)
        try:
            self._waiting.hold(self._transport.get_write_buffer_size())
        except OverBudget:
            self._transport.abort()

    def stop(self) -> None:
        self._waiting.release()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedWriting(asyncio.Protocol):
    """One of uvicorn's protocols, with the limits of its process and a deadline for a client that does not read.

    A class that closes its transport starts the deadline itself: what is still to be written must be taken, too.
    """

    transport: asyncio.Transport
    app_state: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits: Limits = self.app_state["limits"]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._write_deadline = WriteDeadline(transport, self._limits)

    def connection_lost(self, exc: Exception | None) -> None:
        self._write_deadline.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._write_deadline.stop()
