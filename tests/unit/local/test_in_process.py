"""The transport by which a command calls the API's routes in its own process."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from app.local.commands.in_process import StreamingTransport

START = {"type": "http.response.start", "status": 200, "headers": [(b"x-here", b"yes")]}


def piece(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def calling(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=StreamingTransport(app), base_url="http://localhost")


async def test_each_piece_is_there_before_the_next_is_made() -> None:
    go_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(piece(b"first\n"))
        await go_on.wait()
        await send(piece(b"second\n", more=False))

    async with calling(app) as client, client.stream("GET", "/") as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "first"
        go_on.set()
        assert await anext(lines) == "second"


async def test_a_client_that_leaves_ends_the_app() -> None:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        try:
            assert (await receive())["type"] == "http.disconnect"
        finally:
            ended.set()

    async with calling(app) as client:
        async with client.stream("GET", "/"):
            assert not ended.is_set()
        await ended.wait()
