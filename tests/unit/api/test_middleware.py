"""The outermost layer of the app, without a server around it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.api.middleware import RequestIdMiddleware

SCOPE: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": [(b"x-request-id", b"mine")]}


async def nothing() -> Message:
    return await asyncio.Event().wait()  # type: ignore[return-value]


async def cancelled(begin: bool) -> list[Message]:
    """Returns what is sent for an app that never ends and that uvicorn cancels after its grace period."""
    waiting, sent = asyncio.Event(), []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        if begin:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waiting.set()
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        sent.append(message)

    task = asyncio.create_task(RequestIdMiddleware(endless)(dict(SCOPE), nothing, send))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return sent


async def test_a_request_cancelled_before_its_answer_is_a_503_with_retry_after() -> None:
    """Found by tests/faults: an API that was stopped while Postgres was slow had uvicorn answer 500."""
    start, _ = await cancelled(begin=False)
    headers = dict(start["headers"])
    assert (start["status"], headers[b"retry-after"], headers[b"x-request-id"]) == (503, b"1", b"mine")


async def test_a_cancelled_stream_ends_without_another_message() -> None:
    assert [message["type"] for message in await cancelled(begin=True)] == ["http.response.start"]
