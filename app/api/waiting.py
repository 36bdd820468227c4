"""Answers to foreground requests: the response lives as long as its client stays.

client            this process                                         Postgres, queue
POST  ----------> subscribe, insert, commit, message ----------------> queued ... completed
leaves ---------> work is cancelled; the response is an orphan ------> cancelled, revoked
                  SIGTERM: a moment of grace, then as if it had left; the client gets what there is
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.foreground import Foreground
from app.api.racing import disconnected, work_until
from app.api.replies import reply
from app.api.service import ResponseService
from app.api.sse import send_pulses, send_start
from app.api.stopping import Stopping
from app.protocol.request import ResponseRequest


class ForegroundAnswer(Response):
    """Runs one foreground request; what it raises before its first byte goes to the error handlers.

    `grace` is for how many seconds it may go on when the server stops.
    """

    def __init__(
        self, service: ResponseService, project: str, request: ResponseRequest, stopping: Stopping, grace: float
    ) -> None:
        super().__init__()
        self._service = service
        self._project = project
        self._request = request
        self._stopping = stopping
        self._grace = grace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._stream if self._request.stream else self._object
        await work_until(answer(scope, receive, send), disconnected(receive))

    async def _object(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._running() as foreground:
            body = await foreground.result()
        await reply(body)(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._running() as foreground:
            beginning = await foreground.beginning()
            await send_start(send)
            await send_pulses(send, foreground, beginning)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[Foreground]:
        async with self._service.foreground(self._project, self._request) as foreground:
            watching = asyncio.create_task(self._leave_at_stop(foreground))
            try:
                yield foreground
            finally:
                watching.cancel()

    async def _leave_at_stop(self, foreground: Foreground) -> None:
        """The cancellation comes back as the last event, so that the client gets a proper end."""
        await self._stopping.wait()
        await asyncio.sleep(self._grace)
        foreground.leave()
