"""The streams of one WebSocket: requests of one stream run one after another, streams run side by side.

A client names a stream by `stream_id`; requests without one share the unnamed stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from app.aio import end_tasks
from app.bounds import Holding
from app.protocol.errors import InvalidRequest, Unavailable

MAX_NAMED = 32
"""Named streams of one socket; OpenAI's limit."""
MAX_ACTIVE = 16
"""Responses of one socket in progress at once; further requests wait. OpenAI's limit."""
MAX_PENDING = 256
"""Requests of one socket that may wait. Together they may have as many bytes as one request."""


@dataclass(slots=True)
class PendingRequest:
    """The frame of a request, which is parsed once it is accepted: objects would take many times its bytes.

    `holding` has these bytes until `forget`, and `accepting` has them again from before the request is parsed.
    """

    frame: bytes
    size: int
    parsed_size: int
    """What it counts as while it is parsed."""
    continued: str | None
    """Its `previous_response_id`."""
    holding: Holding
    accepting: Holding | None = None

    def forget(self) -> None:
        """The request is stored or refused: it is in memory no longer."""
        self.frame = b""
        self.holding.release()
        if self.accepting is not None:
            self.accepting.release()


@dataclass(slots=True)
class Stream:
    """One stream: its pending requests, and the task that runs them."""

    stream_id: str | None
    last_unstored: str | None = None
    """Its last response, if that is not stored: only this socket may continue it."""
    pending: deque[PendingRequest] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


Run = Callable[[Stream, PendingRequest], Awaitable[None]]


class Streams:
    """Runs each request in its turn.

    Leaves no reference cycle behind: what a slow client did not take would stay until a full garbage collection, and
    that counts objects, not bytes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._streams: dict[str | None, Stream] = {}
        self._active = asyncio.Semaphore(MAX_ACTIVE)
        self._pending_count = 0
        self._pending_bytes = 0

    @property
    def unstored(self) -> frozenset[str]:
        """The responses that are not stored and that this socket may continue."""
        streams = self._streams.values()
        return frozenset(stream.last_unstored for stream in streams if stream.last_unstored is not None)

    @property
    def are_idle(self) -> bool:
        """Whether no request runs or waits."""
        return all(stream.task is None for stream in self._streams.values())

    def add(self, stream_id: str | None, request: PendingRequest, run: Run) -> None:
        """Adds a request to a stream; `run`, the same for all, raises nothing but CancelledError.

        Raises InvalidRequest, and Unavailable if too many requests wait.
        """
        stream = self._streams.get(stream_id) or self._new(stream_id)
        is_full = self._pending_count >= MAX_PENDING
        if is_full or (self._pending_count and self._pending_bytes + request.size > self._max_bytes):
            message = "Too many requests wait on this WebSocket; send the next one when a response has ended."
            raise Unavailable(message, code="websocket_queue_full")
        self._pending_count += 1
        self._pending_bytes += request.size
        stream.pending.append(request)
        if stream.task is None:
            stream.task = asyncio.create_task(self._run_all(stream, run))

    async def idle(self) -> None:
        """Returns once no request runs or waits."""
        while tasks := [stream.task for stream in self._streams.values() if stream.task is not None]:
            await asyncio.wait(tasks)

    def drop_pending(self) -> None:
        """Forgets the requests that wait: their client is gone."""
        for stream in self._streams.values():
            while stream.pending:
                stream.pending.popleft().forget()
        self._pending_count = self._pending_bytes = 0

    async def close(self) -> None:
        """Forgets what waits, and cancels what runs."""
        self.drop_pending()
        await end_tasks(*(stream.task for stream in self._streams.values() if stream.task is not None))

    def _new(self, stream_id: str | None) -> Stream:
        if stream_id is not None and sum(known is not None for known in self._streams) >= MAX_NAMED:
            message = f"This WebSocket has {MAX_NAMED} values of 'stream_id'; use one of them, or another WebSocket."
            raise InvalidRequest(message, "stream_id", "websocket_stream_limit_reached")
        return self._streams.setdefault(stream_id, Stream(stream_id))

    async def _run_all(self, stream: Stream, run: Run) -> None:
        try:
            while stream.pending:
                async with self._active:
                    if not stream.pending:  # Dropped while this stream waited for its turn.
                        break
                    request = stream.pending.popleft()
                    self._pending_count -= 1
                    self._pending_bytes -= request.size
                    try:
                        await run(stream, request)
                    finally:
                        request.forget()
        finally:
            stream.task = None
