"""The API's routes in this process, beside the services: for an operator's command that names no URL."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import httpx
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from app.aio import end_tasks
from app.main import create_app
from config.models import load_catalog
from config.settings import Settings

BASE_URL = "http://localhost"

_Message = MutableMapping[str, Any]
_App = Callable[[Any, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]]


@contextlib.asynccontextmanager
async def routes_on(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API's routes on the database of the settings, until the block ends.

    It sends no key: whoever has the database's URL is an operator. Raises ConfigError.
    """
    _ = settings.database_dsn, settings.broker_url  # Raise ConfigError if they are not set.
    logging.getLogger("longhaul").addHandler(logging.NullHandler())  # The command itself says what is wrong.
    open_here = settings.model_copy(update={"auth": "open", "host": "127.0.0.1", "metrics_port": None})
    app = create_app(open_here, load_catalog(settings))
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        async with httpx.AsyncClient(transport=StreamingTransport(with_state), base_url=BASE_URL) as http:
            yield http


class StreamingTransport(httpx.AsyncBaseTransport):
    """Calls an ASGI app. Other than httpx's own transport it hands an answer on while the app still writes it."""

    def __init__(self, app: _App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "server": (url.host, url.port),
            "client": None,
        }
        to_client, messages = anyio.create_memory_object_stream[_Message](0)
        closed = asyncio.Event()
        call = asyncio.create_task(_call(self._app, scope, await request.aread(), to_client, closed))
        answer = _Answer(messages, call, closed)
        try:
            start = await answer.next()
        except BaseException:
            await answer.aclose()
            raise
        return httpx.Response(start["status"], headers=start["headers"], stream=answer)


async def _call(
    app: _App, scope: Any, body: bytes, to_client: MemoryObjectSendStream[_Message], closed: asyncio.Event
) -> None:
    requests: list[_Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> _Message:
        if not requests:
            await closed.wait()
            return {"type": "http.disconnect"}
        return requests.pop()

    async with to_client:
        await app(scope, receive, to_client.send)


class _Answer(httpx.AsyncByteStream):
    """What the app sends. It waits until each message is taken."""

    def __init__(
        self, messages: MemoryObjectReceiveStream[_Message], call: asyncio.Task[None], closed: asyncio.Event
    ) -> None:
        self._messages = messages
        self._call = call
        self._closed = closed

    async def next(self) -> _Message:
        """The next message. Raises what the app raised in place of one."""
        try:
            return await self._messages.receive()
        except anyio.EndOfStream:
            await self._call
            raise httpx.RemoteProtocolError("the app ended without an answer") from None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self.next()
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def aclose(self) -> None:
        self._closed.set()
        self._messages.close()
        await end_tasks(self._call)
