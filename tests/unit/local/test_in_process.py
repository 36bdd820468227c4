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


async def test_the_app_gets_the_request_and_the_client_its_answer() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope, body=(await receive())["body"])
        await send(START)
        await send(piece(b"one "))
        await send(piece(b"two", more=False))

    async with calling(app) as client:
        answer = await client.post("/v1/a%20b?by=key", content=b"sent", headers={"X-Mine": "1"})
    assert (answer.status_code, answer.text, answer.headers["x-here"]) == (200, "one two", "yes")
    assert (seen["path"], seen["query_string"], seen["method"], seen["body"]) == ("/v1/a b", b"by=key", "POST", b"sent")
    assert (b"x-mine", b"1") in seen["headers"]


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
