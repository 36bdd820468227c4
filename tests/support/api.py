"""The API for tests: the real app in a real uvicorn, in the event loop of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import orjson
import uvicorn
import uvicorn.server
from openai import AsyncOpenAI
from openai.resources.responses.responses import AsyncResponsesConnection

from app.api import readiness
from app.api.connection.http import BoundedHttp
from app.api.connection.websocket import BoundedWebSocket
from app.api.dependencies import Runtime
from app.main import create_app
from app.protocol.types import Json
from app.responses.read import reader
from app.store.roles.rights import API
from config.models import ModelCatalog, ServedModel
from config.settings import Settings, load_settings
from tests.support.grammar import is_repeat
from tests.support.scripted import SCRIPTED
from tests.support.waiting import PATIENCE_SECONDS, until

MODEL = "scripted"
POLL_SECONDS = 0.2
KEPT_SECONDS = 3600
"""A test may take its time between two requests on a connection."""


def served(name: str = MODEL, **sampling: float) -> ServedModel:
    return ServedModel(name, "", f"model.{name}", SCRIPTED, default_sampling=sampling)


CATALOG = ModelCatalog((served(temperature=0.5), served("org/other-model")))


def settings_for(services: Any, home: Path, **more: Any) -> Settings:
    """Returns settings for these services, with short pauses."""
    urls = {"DATABASE_URL": services.url_of(API), "REDIS_URL": services.redis_url}
    # A stream whose response nobody has begun shows its headers with the first keepalive.
    pauses = {"api_grace_seconds": 0.1, "keepalive_seconds": 1.0}
    return load_settings(**urls, **{**pauses, "home": home, **more})


class Api:
    """One running API, in the process of the test."""

    def __init__(self, server: uvicorn.Server, client: httpx.AsyncClient) -> None:
        self.server = server
        self.client = client

    @property
    def url(self) -> str:
        return str(self.client.base_url)

    @property
    def runtime(self) -> Runtime:
        runtime: Runtime = self.server.lifespan.state["runtime"]
        return runtime

    async def post(self, **fields: Any) -> httpx.Response:
        """Creates a response."""
        return await self.client.post("/v1/responses", json={"model": MODEL, "input": "Hello!", **fields})

    async def background(self, **fields: Any) -> str:
        """Creates a background response and returns its id. With `stream` it reads one event and disconnects."""
        if fields.get("stream"):
            async with self.streaming(background=True, **fields) as reader:
                first = await reader.event()
                assert first is not None
                streamed: str = first["response"]["id"]
                return streamed
        created = await self.post(background=True, **fields)
        assert created.status_code == 200, created.text
        response_id: str = created.json()["id"]
        return response_id

    async def get(self, response_id: str, **query: Any) -> httpx.Response:
        return await self.client.get(f"/v1/responses/{response_id}", params=query)

    async def streamed(self, response_id: str, **query: Any) -> bytes:
        """Returns the frames of the log from there on, and `[DONE]`: see `Reader.rest`."""
        async with self.resuming(response_id, **query) as reader:
            return await reader.rest()

    @asynccontextmanager
    async def streaming(self, **fields: Any) -> AsyncIterator[Reader]:
        """Creates a response with `stream` true; leaving the block closes the stream."""
        body = {"model": MODEL, "input": "Hello!", **fields, "stream": True}
        async with self.client.stream("POST", "/v1/responses", json=body) as response:
            yield Reader(response)

    @asynccontextmanager
    async def resuming(self, response_id: str, **query: Any) -> AsyncIterator[Reader]:
        params = {"stream": "true", **query}
        async with self.client.stream("GET", f"/v1/responses/{response_id}", params=params) as response:
            yield Reader(response, int(query.get("starting_after", -1)))


class Reader:
    """Reads the frames of one stream."""

    def __init__(self, response: httpx.Response, after: int = -1) -> None:
        self.response = response
        self.status = response.status_code
        self._bytes = response.aiter_bytes()
        self._buffer = b""
        self._last = after

    async def frame(self) -> bytes | None:
        """Returns the next frame or comment; None at the end."""
        while b"\n\n" not in self._buffer:
            try:
                self._buffer += await anext(self._bytes)
            except StopAsyncIteration:
                assert self._buffer == b"", "the stream ended within a frame"
                return None
        frame, self._buffer = self._buffer.split(b"\n\n", 1)
        return frame + b"\n\n"

    async def event(self) -> dict[str, Any] | None:
        """Returns the next event of the log; None at `[DONE]` or at the end."""
        frame = await self.logged()
        return None if frame is None or frame == b"data: [DONE]\n\n" else _event_in(frame)

    async def logged(self) -> bytes | None:
        """Returns the next frame of the log, or `[DONE]`: no comment, and nothing that only keeps a stream alive.

        None at the end.
        """
        while (frame := await self.frame()) is not None and not frame.startswith(b"data: "):
            if not frame.startswith(b":") and not is_repeat(event := _event_in(frame), self._last):
                self._last = event["sequence_number"]
                break
        return frame

    async def until_event(self, kind: str) -> dict[str, Any]:
        """Reads up to the next event of that type, and returns it."""
        while (event := await self.event()) is not None:
            if event["type"] == kind:
                return event
        raise AssertionError(f"the stream ended without {kind}")

    async def rest(self) -> bytes:
        """Returns everything up to the end, without what only keeps the stream alive."""
        parts = []
        while (frame := await self.logged()) is not None:
            parts.append(frame)
        return b"".join(parts)


class _Hurried:
    """`asyncio` as uvicorn's server sees it: a tenth of its pauses, which are two tenths of a second at each stop."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


def client_of(url: str, **headers: str) -> httpx.AsyncClient:
    kept = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEPT_SECONDS)
    return httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, limits=kept, headers=headers)


@asynccontextmanager
async def serving(settings: Settings, catalog: ModelCatalog | None = CATALOG) -> AsyncIterator[Api]:
    """Runs the API until the block ends, then stops it as SIGTERM would. Its readers poll often, its checks are slow to
    give up."""
    app = create_app(settings, catalog)
    config = uvicorn.Config(
        app,
        port=0,
        log_config=None,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEPT_SECONDS,
        http=BoundedHttp,
        ws=BoundedWebSocket,
        lifespan="on",
    )
    server = uvicorn.Server(config)
    with (
        patch.object(reader, "POLL_SECONDS", POLL_SECONDS),
        patch.object(readiness, "CHECK_SECONDS", PATIENCE_SECONDS),
        patch.object(uvicorn.server, "asyncio", _Hurried()),
    ):
        running = asyncio.create_task(server.serve())
        await until(lambda: server.started or running.done(), what="a started API", pause=0.002)
        assert server.started
        port = server.servers[0].sockets[0].getsockname()[1]
        async with client_of(f"http://127.0.0.1:{port}") as client:
            api = Api(server, client)
            try:
                yield api
            finally:
                api.runtime.shutdown.begin()
                server.should_exit = True
                await client.aclose()
                await running


def _event_in(frame: bytes) -> dict[str, Any]:
    event: dict[str, Any] = orjson.loads(frame.split(b"\ndata: ", 1)[1])
    return event


async def uploaded(client: AsyncOpenAI, data: bytes = b"Hello!", name: str = "a.txt", **more: Any) -> Any:
    return await client.files.create(file=(name, data), purpose=more.pop("purpose", "user_data"), **more)


FINAL = ("response.completed", "response.incomplete", "response.failed", "error")


async def events(socket: AsyncResponsesConnection, kinds: tuple[str, ...] = FINAL) -> list[Json]:
    """Returns the events up to the first one of these kinds."""
    seen: list[Json] = []
    while not seen or seen[-1]["type"] not in kinds:
        seen.append(json.loads(await socket.recv_bytes()))
    return seen
