"""An answer that waits for what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.aio import run_until
from app.api.holdings import holdings_of
from app.api.sse import disconnected

Waiting = Callable[[], Coroutine[Any, Any, None]]
Answering = Callable[[], Awaitable[Response]]


class LongPoll(Response):
    """Waits, holding nothing but its connection, and then answers; a server that stops answers at once.

    Errors of both go to the app's error handlers.
    """

    def __init__(self, wait: Waiting, answer: Answering, shutdown: asyncio.Event) -> None:
        super().__init__()
        self._wait = wait
        self._answer = answer
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        holdings_of(scope).release_body()
        await run_until(self._answered(scope, receive, send), disconnected(receive))

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_until(self._wait(), self._shutdown.wait())
        await (await self._answer())(scope, receive, send)
