"""The lanes of one WebSocket: requests of one lane are answered one after the other, lanes beside each other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from app.protocol.errors import InvalidRequest, Unavailable

NAMED = 32
"""Lanes with a `stream_id` that one socket may have; OpenAI's limit."""
ACTIVE = 16
"""Responses that one socket may have in progress; more wait. OpenAI's limit."""
WAITING = 256
"""Requests that may wait in all lanes of a socket; so may so many bytes as one request may have."""


@dataclass(slots=True)
class Waiting:
    """A request that was read, and how many bytes it came in."""

    fields: dict[str, Any]
    size: int


@dataclass(slots=True)
class Lane:
    name: str | None
    latest: str | None = None
    """Its latest response, where that is not stored: this socket may continue it, and nobody else."""
    waiting: deque[Waiting] = field(default_factory=deque)
    working: asyncio.Task[None] | None = None


Answer = Callable[[Lane, Waiting], Awaitable[None]]


class Lanes:
    """`answer` is called for each request in its turn, and raises nothing but CancelledError."""

    def __init__(self, answer: Answer, max_bytes: int) -> None:
        self._answer = answer
        self._max_bytes = max_bytes
        self._lanes: dict[str | None, Lane] = {}
        self._active = asyncio.Semaphore(ACTIVE)
        self._count = 0
        self._bytes = 0

    @property
    def latest(self) -> frozenset[str]:
        """Responses that are not stored and that this socket may continue."""
        return frozenset(lane.latest for lane in self._lanes.values() if lane.latest is not None)

    def add(self, name: str | None, request: Waiting) -> None:
        """Takes a request for a lane. Raises InvalidRequest, and Unavailable where too many wait already."""
        lane = self._lanes.get(name) or self._new(name)
        if self._count >= WAITING or (self._count and self._bytes + request.size > self._max_bytes):
            message = "Too many requests wait on this WebSocket; send the next one when a response has ended."
            raise Unavailable(message, code="websocket_queue_full")
        self._count += 1
        self._bytes += request.size
        lane.waiting.append(request)
        if lane.working is None:
            lane.working = asyncio.create_task(self._work(lane))

    def forget(self) -> None:
        """What waits is not answered any more: there is nobody to answer."""
        for lane in self._lanes.values():
            lane.waiting.clear()
        self._count = self._bytes = 0

    async def close(self) -> None:
        """Gives up what is in progress, and forgets what waits."""
        working = [lane.working for lane in self._lanes.values() if lane.working is not None]
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    def _new(self, name: str | None) -> Lane:
        if name is not None and sum(known is not None for known in self._lanes) >= NAMED:
            message = f"This WebSocket has {NAMED} values of 'stream_id' already; use one of those, or open another."
            raise InvalidRequest(message, "stream_id", "websocket_stream_limit_reached")
        return self._lanes.setdefault(name, Lane(name))

    async def _work(self, lane: Lane) -> None:
        while lane.waiting:
            async with self._active:
                if not lane.waiting:  # forgotten meanwhile
                    break
                request = lane.waiting.popleft()
                self._count -= 1
                self._bytes -= request.size
                await self._answer(lane, request)
        lane.working = None
