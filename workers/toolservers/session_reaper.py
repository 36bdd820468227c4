"""Ends MCP sessions whose client is gone.

A client that is killed sends no DELETE, so its session would hold its resources until the idle time is over. Most
clients, the SDK's among them, keep a stream open for messages from the server. If that stream breaks and no request
follows for a while, the reaper ends the session with the DELETE that the client would have sent. A client without a
stream may stay silent for the whole idle time.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SESSION_HEADER = "mcp-session-id"


class SessionReaper:
    """An ASGI middleware. `seconds` is how long a client may be gone."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self._open_requests: Counter[str] = Counter()
        self._had_stream: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = Headers(scope=scope).get(SESSION_HEADER) if scope["type"] == "http" else None
        if session is None:
            await self._app(scope, receive, send)
            return
        self._begin_request(session)
        delete_scope = {**scope, "method": "DELETE"}  # made first: the app may change `scope`
        try:
            await self._app(scope, receive, send)
        finally:
            self._end_request(session, scope["method"], delete_scope)

    def _begin_request(self, session: str) -> None:
        self._open_requests[session] += 1
        if timer := self._timers.pop(session, None):
            timer.cancel()

    def _end_request(self, session: str, method: str, delete_scope: Scope) -> None:
        self._open_requests[session] -= 1
        if method == "GET":
            self._had_stream.add(session)
        if self._open_requests[session] > 0:
            return
        del self._open_requests[session]
        if method == "DELETE":
            self._had_stream.discard(session)
        elif session in self._had_stream:
            loop = asyncio.get_running_loop()
            self._timers[session] = loop.call_later(self._seconds, self._end_session, session, delete_scope)

    def _end_session(self, session: str, delete_scope: Scope) -> None:
        del self._timers[session]
        self._had_stream.discard(session)
        task = asyncio.create_task(self._send_delete(delete_scope))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _send_delete(self, delete_scope: Scope) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_: Message) -> None:
            """Discards the reply: no client waits for it."""

        await self._app(delete_scope, receive, send)
