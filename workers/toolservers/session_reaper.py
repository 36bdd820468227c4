"""Ends MCP sessions whose client is gone.

A client that is killed sends no DELETE, and its session would hold what it has until the idle time is over. But a
client that keeps a stream open for what the server may say (the SDK's does) is there as long as the stream is: where
the stream broke and nothing came for a while, the session is ended as the client would have done it. A client without
such a stream may be silent for as long as the idle time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

SESSION_HEADER = b"mcp-session-id"


class Presence:
    """An ASGI application around another one; `seconds` is how long a client may be gone."""

    def __init__(self, app: Asgi, seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self._open: Counter[str] = Counter()
        self._listened: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = _session_of(scope)
        if session is None:
            await self._app(scope, receive, send)
            return
        self._come(session)
        farewell = {**scope, "method": "DELETE"}  # as the client would have sent it
        try:
            await self._app(scope, receive, send)
        finally:
            self._go(session, scope["method"], farewell)

    def _come(self, session: str) -> None:
        self._open[session] += 1
        if timer := self._timers.pop(session, None):
            timer.cancel()

    def _go(self, session: str, method: str, farewell: Scope) -> None:
        self._open[session] -= 1
        if method == "GET":
            self._listened.add(session)
        if self._open[session] > 0:
            return
        del self._open[session]
        if method == "DELETE":
            self._listened.discard(session)
        elif session in self._listened:
            loop = asyncio.get_running_loop()
            self._timers[session] = loop.call_later(self._seconds, self._end, session, farewell)

    def _end(self, session: str, farewell: Scope) -> None:
        del self._timers[session]
        self._listened.discard(session)
        task = asyncio.create_task(self._say(farewell))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _say(self, farewell: Scope) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_: Message) -> None:
            """Nobody is there to hear it."""

        await self._app(farewell, receive, send)


def _session_of(scope: Scope) -> str | None:
    if scope["type"] != "http":
        return None
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == SESSION_HEADER), None)
