"""Answers to foreground requests: the response lives as long as its client stays.

client            this process                                         Postgres, queue
POST  ----------> subscribe, insert, commit, message ----------------> queued ... completed
leaves ---------> work is cancelled; the response is an orphan ------> cancelled, revoked
                  SIGTERM: a moment of grace, then as if it had left; the client gets what there is

With an Idempotency-Key the response goes on without its client, who may come back for it: by repeating the request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.aio import run_until
from app.api.errors import refuse, reply
from app.api.shutdown import Shutdown
from app.api.sse import disconnected, send_end, send_pulses, send_start
from app.protocol.errors import Unavailable
from app.protocol.requests.request import ResponseRequest
from app.queue.celery_app import Priority
from app.responses.attached import Foreground
from app.responses.input_tokens import Shape, as_it_is
from app.responses.service import ResponseService


class ForegroundAnswer(Response):
    """Runs one foreground request; what it raises before its first byte goes to the error handlers.

    `grace` is for how many seconds it may go on when the server stops. `key` is its Idempotency-Key. `shape` makes
    the body of what is no stream.
    """

    def __init__(
        self,
        service: ResponseService,
        project: str,
        request: ResponseRequest,
        key: str | None,
        stopping: Shutdown,
        grace: float,
        priority: Priority | None = None,
        shape: Shape = as_it_is,
    ) -> None:
        super().__init__()
        self._service = service
        self._project = project
        self._request = request
        self._key = key
        self._stopping = stopping
        self._grace = grace
        self._priority = priority
        self._shape = shape
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._stream if self._request.stream else self._object
        signals = [disconnected(receive)] if self._key is None else [disconnected(receive), self._stopped()]
        finished = await run_until(answer(scope, receive, send), *signals)
        if not finished and self._key is not None and self._stopping.is_set:
            await self._break_off(scope, receive, send)

    async def _break_off(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The response goes on; its client has to come back for it. A stream has no `[DONE]` then."""
        if self._begun:
            await send_end(send)
        else:
            away = Unavailable("The server stops; send the request again, with the same Idempotency-Key.")
            await refuse(away)(scope, receive, send)

    async def _object(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._running() as foreground:
            body = await self._shape(await foreground.result())
        await reply(body)(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._running() as foreground:
            beginning = await foreground.beginning()
            self._begun = True
            await send_start(send)
            await send_pulses(send, foreground, beginning)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[Foreground]:
        async with self._service.foreground(self._project, self._request, self._key, self._priority) as foreground:
            watching = asyncio.create_task(self._leave_at_stop(foreground))
            try:
                yield foreground
            finally:
                watching.cancel()

    async def _leave_at_stop(self, foreground: Foreground) -> None:
        """The cancellation comes back as the last event, so that the client gets a proper end."""
        await self._stopped()
        foreground.leave()

    async def _stopped(self) -> None:
        await self._stopping.wait()
        await asyncio.sleep(self._grace)
