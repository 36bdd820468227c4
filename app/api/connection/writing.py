"""What connections of both kinds share: their client must take what is written for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from app.api.holdings import BOUNDS, CONNECTION, ProcessBounds, known_holdings
from app.bounds import BoundReached, Holding


class WriteDeadline:
    """Ends a connection whose client has taken nothing for too long; what it did not take is dropped.

    What waits for slow clients counts in one bound, too: beyond it a connection ends at once. For a client that takes a
    little each time there is no other limit: it holds what its project may hold of `answers`, for as long as it takes.
    """

    def __init__(self, transport: asyncio.Transport, bounds: ProcessBounds) -> None:
        self._transport = transport
        self._seconds = bounds.write_seconds
        self._answers = bounds.answers
        self._waiting = bounds.answers.take(None, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._left = 0
        """The bytes that waited at the last look."""
        self._is_last = False

    def start(self, scope: Mapping[str, Any] | None = None, *, last: bool = False) -> None:
        """Takes over what the answer to the request `scope` holds.

        With `last` the connection is being closed: until it is, nothing stops the deadline.
        """
        self._is_last |= last
        if self._timer is None:
            holdings = known_holdings(scope)
            held = None if holdings is None else holdings.take_answer()
            self._waiting = held or self._answers.take(None if holdings is None else holdings.project, 0)
            self._watch()
        self._count()

    def _watch(self) -> None:
        self._left = self._transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() < self._left:
            self._watch()
            self._count()
        else:
            self._transport.abort()

    def _count(self) -> None:
        try:
            self._waiting.resize(self._transport.get_write_buffer_size())
        except BoundReached:
            self._transport.abort()

    def stop(self) -> None:
        """The client has taken what waited for it."""
        if not self._is_last:
            self.end()

    def end(self) -> None:
        """The connection is closed."""
        self._waiting.release()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedWriting(asyncio.Protocol):
    """One of uvicorn's protocols, with the bounds of its process and a deadline for a client that does not read.

    A class that closes its transport starts the deadline itself: what is still to be written must be taken, too.
    """

    transport: asyncio.Transport
    app_state: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds: ProcessBounds = self.app_state[BOUNDS]
        self._place: Holding = self.app_state.get(CONNECTION) or self._bounds.connections.take(None, 0)
        # Every request's state is a copy of this one, and a WebSocket takes over what its HTTP connection holds.
        self.app_state = {**self.app_state, CONNECTION: self._place}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._write_deadline = WriteDeadline(transport, self._bounds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._write_deadline.end()
        self._place.release()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        super().eof_received()
        self._write_deadline.start(getattr(self, "scope", None), last=True)  # The transport closes.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline.start(getattr(self, "scope", None))

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_deadline.stop()
