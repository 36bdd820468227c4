"""Answers that wait for what they are about. A foreground response lives as long as its client stays connected.

client            this process                                         Postgres, queue
POST  ----------> subscribe, insert, commit, message ----------------> queued ... completed
disconnects ----> the work is cancelled; the response is abandoned --> cancelled, revoked
                  SIGTERM: the same after the grace; the client still gets the cancelled response

With an Idempotency-Key the response goes on without its client. The client gets it by repeating the request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.aio import run_until
from app.api.errors import encoded_reply, refuse
from app.api.holdings import holdings_of
from app.api.rate_limits import headers_of
from app.api.sse import disconnected, send_at_once, send_end, send_pulses, send_start
from app.api.view import PLAIN, View
from app.protocol.errors import Unavailable
from app.responses.read.attached import AttachedResponse

T = TypeVar("T")

Attach = Callable[[], AbstractAsyncContextManager[AttachedResponse]]
"""`ResponseService.attach` with its arguments."""


class AttendedReply(Response, Generic[T]):
    """An answer that somebody is asked for, and that is `shown` once it is there.

    Nobody works on it any longer once its client has left, or the grace is `over`.
    """

    def __init__(
        self,
        asking: AbstractAsyncContextManager[Callable[[], Awaitable[T]]],
        shown: Callable[[T], Response],
        over: asyncio.Event,
    ) -> None:
        super().__init__()
        self._asking = asking
        self._shown = shown
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        holdings_of(scope).is_foreground = True
        finished = await run_until(self._send(scope, receive, send), disconnected(receive), self._over.wait())
        if not finished and self._over.is_set():
            await refuse(Unavailable("The server is stopping; send the request again."))(scope, receive, send)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        asking = self._asking
        del self._asking  # It has the whole request in it.
        async with asking as answer:
            holdings_of(scope).release_body()
            found = await answer()
        await self._shown(found)(scope, receive, send)


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


class ForegroundReply(Response):
    """Runs one foreground request. Errors before the first byte go to the app's error handlers.

    The response ends with its client unless it is `detachable`, as one with an Idempotency-Key is. When the server
    stops, the request goes on until the grace is `over`.
    """

    def __init__(
        self,
        attach: Attach,
        over: asyncio.Event,
        *,
        stream: bool,
        detachable: bool = False,
        view: View = PLAIN,
    ) -> None:
        super().__init__()
        self._attach = attach
        self._over = over
        self._stream = stream
        self._detachable = detachable
        self._view = view
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._holdings = holdings_of(scope)
        self._holdings.is_foreground = True
        signals: list[Coroutine[Any, Any, object]] = [disconnected(receive)]
        if self._detachable:
            signals.append(self._over.wait())
        answer = self._send_stream(send) if self._stream else self._send_object(scope, receive, send)
        finished = await run_until(answer, *signals)
        if not finished and self._detachable and self._over.is_set():
            await self._break_off(scope, receive, send)

    async def _break_off(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The response goes on, so a stream ends without `[DONE]`: its client has to repeat the request."""
        if self._started:
            await send_end(send)
        else:
            error = Unavailable("The server is stopping; send the request again with the same Idempotency-Key.")
            await refuse(error)(scope, receive, send)

    async def _send_object(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._attached() as response:
            body = await response.result(self._view.body, self._holdings.wait_for_answer)
        await encoded_reply(body, headers=self._more_headers(response))(scope, receive, send)

    async def _send_stream(self, send: Send) -> None:
        async with self._attached() as response:
            await self._send_beginning(send, response)
            await send_pulses(send, response, self._view)

    async def _send_beginning(self, send: Send, response: AttachedResponse) -> None:
        """The events that the request is repeated in; nothing of them stays in memory."""
        beginning = await response.beginning()
        self._started = True
        await send_start(send, self._more_headers(response))
        await send_at_once(send, beginning, self._view)

    def _more_headers(self, response: AttachedResponse) -> dict[str, str]:
        return {**headers_of(response.allowance), **self._view.headers(response.id)}

    @contextlib.asynccontextmanager
    async def _attached(self) -> AsyncIterator[AttachedResponse]:
        attaching = self._attach()
        del self._attach
        async with attaching as response:
            del attaching
            self._holdings.release_body()  # The request is stored, and nothing here refers to it any longer.
            async with detached_by(self._over, response):
                yield response


@contextlib.asynccontextmanager
async def detached_by(over: asyncio.Event, response: AttachedResponse) -> AsyncIterator[None]:
    """Detaches the response once the grace is over. Its cancellation arrives as the last event: a proper end."""

    async def detach() -> None:
        await over.wait()
        response.detach()

    detaching = asyncio.create_task(detach())
    try:
        yield
    finally:
        detaching.cancel()
