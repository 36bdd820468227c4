"""An answer that waits for what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.aio import run_until
from app.api.holdings import holdings_of
from app.api.sse import disconnected

T = TypeVar("T")


class LongPoll(Response, Generic[T]):
    """Waits, holding nothing but its connection, and then answers; a server that stops answers at once.

    `answer` gets what `wait` has found, or None. Errors of both go to the app's error handlers.
    """

    def __init__(
        self,
        wait: Callable[[], Awaitable[T | None]],
        answer: Callable[[T | None], Awaitable[Response]],
        shutdown: asyncio.Event,
    ) -> None:
        super().__init__()
        self._wait = wait
        self._answer = answer
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        holdings_of(scope).release_body()
        await run_until(self._answered(scope, receive, send), disconnected(receive))

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        found: T | None = None

        async def wait() -> None:
            nonlocal found
            found = await self._wait()

        await run_until(wait(), self._shutdown.wait())
        await (await self._answer(found))(scope, receive, send)
