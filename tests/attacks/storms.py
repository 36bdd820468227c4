"""Attacks by number and by timing: readers that do not read, resumes, cancels, keys, WebSockets, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json

from websockets.asyncio.client import ClientConnection

from tests.attacks.attack import HARMLESS, Attack
from tests.attacks.target import Ended, Target

HOLD_SECONDS = 3.0
_LARGE = "i" * 7_000_000


async def _background(target: Target, **fields: object) -> str:
    """The id of a background response that has ended and can be streamed again."""
    return str((await target.create(background=True, stream=True, **fields))["id"])


async def _stuck(target: Target, request: bytes, count: int) -> None:
    """`count` connections that ask and never read."""

    async def hold(_: int) -> None:
        with contextlib.suppress(OSError):
            async with target.connection(slow=True) as (_reader, writer):
                writer.write(request)
                await asyncio.sleep(HOLD_SECONDS)
        target.seen["held"] += 1

    await target.repeat(count, hold, parallel=count)


async def slow_readers(target: Target, count: int) -> None:
    """Streams of a log of 20 MB that nobody reads: its first events show the instructions."""
    path = f"/v1/responses/{await _background(target, instructions=_LARGE)}?stream=true"
    await _stuck(target, target.head(f"GET {path} HTTP/1.1") + b"\r\n", count)


async def slow_pollers(target: Target, count: int) -> None:
    """The same without a stream."""
    path = f"/v1/responses/{await _background(target, instructions=_LARGE)}"
    await _stuck(target, (target.head(f"GET {path} HTTP/1.1") + b"\r\n") * 4, count)


async def slow_listers(target: Target, count: int) -> None:
    path = f"/v1/responses/{await _background(target, input=_LARGE)}/input_items"
    await _stuck(target, target.head(f"GET {path} HTTP/1.1") + b"\r\n", count)


async def slow_streams(target: Target, count: int) -> None:
    """Responses that write while their own clients do not read."""
    body = json.dumps({"model": target.model, "input": "/repeat 30000 word ", "stream": True}).encode()
    await _stuck(
        target, target.head("POST /v1/responses HTTP/1.1", f"Content-Length: {len(body)}") + b"\r\n" + body, count
    )


async def resume_storm(target: Target, count: int) -> None:
    """The points of a log are asked for again and again, and points that are none."""
    path = f"/v1/responses/{await _background(target, input='/count 40', max_output_tokens=None)}?stream=true"
    points = [*(number % 10 for number in range(count)), 2**31 - 2, 2**31, 10**30, -1]
    await target.repeat(len(points), lambda number: target.send("GET", f"{path}&starting_after={points[number]}"))


async def cancel_storm(target: Target, count: int) -> None:
    """Responses that hang, each cancelled several times at once."""

    async def one(_: int) -> None:
        created = await target.create(background=True, input="/hang 1", max_output_tokens=None)
        if "id" in created:
            path = f"/v1/responses/{created['id']}/cancel"
            await asyncio.gather(*(target.send("POST", path) for _ in range(3)))

    await target.repeat(count, one)


async def delete_storm(target: Target, count: int) -> None:
    """Responses that are deleted while they are made and read."""

    async def one(_: int) -> None:
        created = await target.create(background=True, input="/count 200", max_output_tokens=None)
        if "id" in created:
            path = f"/v1/responses/{created['id']}"
            reading = [target.send("GET", path), target.send("GET", f"{path}/input_items")]
            await asyncio.gather(*reading, *(target.send("DELETE", path) for _ in range(2)))

    await target.repeat(count, one)


async def read_flood(target: Target, count: int) -> None:
    path = f"/v1/responses/{await _background(target, instructions='i' * 1_000_000)}"
    await target.repeat(count, lambda _: target.send("GET", path))


async def post_flood(target: Target, count: int) -> None:
    await target.repeat(count, lambda _: target.create(), parallel=64)


async def background_flood(target: Target, count: int) -> None:
    await target.repeat(count, lambda _: target.create(background=True), parallel=32)


async def key_flood(target: Target, count: int) -> None:
    """One key for many requests at once, many keys, and keys that are none."""

    async def one(key: str) -> None:
        body = {"model": target.model, "input": "x", "max_output_tokens": 1, "background": True}
        await target.send("POST", "/v1/responses", json=body, headers={"idempotency-key": key})

    await target.repeat(count, lambda _: one("one-key"))
    await target.repeat(count, lambda number: one(f"key-{number}"))
    for key in ("", "k" * 10_000, "a\tb"):
        await one(key)


async def leaving_clients(target: Target, count: int) -> None:
    """Clients that ask for a long answer and leave at once."""
    body = json.dumps({"model": target.model, "input": "/hang 1", "stream": True}).encode()
    request = target.head("POST /v1/responses HTTP/1.1", f"Content-Length: {len(body)}") + b"\r\n" + body

    async def leave(_: int) -> None:
        async with target.connection() as (_reader, writer):
            writer.write(request)
            await writer.drain()
            await asyncio.sleep(0.05)
        target.seen["closed"] += 1

    await target.repeat(count, leave)


# -- WebSockets ------------------------------------------------------------------------------------------------------


async def many_websockets(target: Target, count: int) -> None:
    """Connections that say nothing."""

    async def hold(_: int) -> None:
        async with target.websocket():
            await asyncio.sleep(HOLD_SECONDS)
            target.seen["held"] += 1

    await target.repeat(count, hold, parallel=count)


async def websocket_frames(target: Target, count: int) -> None:
    """Frames of no sense, and as many requests at once as there are frames."""
    async with target.websocket() as opened:
        await opened.send(b"\x00\xff")
        for text in ("", "{", "[]", "null", "[" * 10_000, '{"type":"\\ud800"}', "x" * 1_000_000):
            await opened.send(text)
        await _answers(target, opened, 8)
        for number in range(count):
            request = {"type": "response.create", "model": target.model, "input": "x", "stream_id": f"s{number}"}
            await opened.send(json.dumps(request))
        await _answers(target, opened, count)


async def _answers(target: Target, opened: ClientConnection, count: int) -> None:
    for _ in range(count):
        await target.last_event(opened)


async def websocket_requests_wait(target: Target, count: int) -> None:
    """Requests of one stream behind a response that hangs."""
    async with target.websocket() as opened:
        request = {"type": "response.create", "model": target.model, "input": "/hang 1"}
        for number in range(count):
            await opened.send(json.dumps({**request, "instructions": "i" * 100_000 if number else "i"}))
        target.seen["held"] += 1
        await asyncio.sleep(1)


async def large_frames(target: Target, count: int) -> None:
    """Frames above the limit, whole and in endless fragments."""
    with contextlib.suppress(Ended):
        async with target.websocket() as opened:
            await opened.send("x" * 9_000_000)
            await target.last_event(opened)
    async with target.websocket() as opened:
        await opened.send("x" * 1_000_000 for _ in range(count))
        await target.last_event(opened)


async def slow_websockets(target: Target, count: int) -> None:
    """Connections that ask for long answers and never read them."""
    body = {
        "type": "response.create",
        "model": target.model,
        "input": "/repeat 3000 word ",
        "instructions": "i" * 300_000,
    }

    async def hold(_: int) -> None:
        async with target.websocket(max_queue=1) as opened:
            for number in range(4):
                await opened.send(json.dumps({**body, "stream_id": f"s{number}"}))
            await asyncio.sleep(HOLD_SECONDS)
            target.seen["held"] += 1

    await target.repeat(count, hold, parallel=count)


async def ping_flood(target: Target, count: int) -> None:
    async with target.websocket() as opened:
        for number in range(count):
            await opened.ping(number.to_bytes(4, "big") * 31)
        await target.turn(opened)


ATTACKS = (
    Attack("slow-readers", "5: readers that do not read", slow_readers, 150, 5, HARMLESS),
    Attack("slow-pollers", "5: readers that do not read", slow_pollers, 100, 4, HARMLESS),
    Attack("slow-listers", "5: readers that do not read", slow_listers, 100, 4, HARMLESS),
    Attack("slow-streams", "5: readers that do not read", slow_streams, 100, 5, HARMLESS),
    Attack("resume-storm", "starting_after everywhere", resume_storm, 1000, 20, HARMLESS),
    Attack("cancel-storm", "19: cancelling", cancel_storm, 300, 8, HARMLESS),
    Attack("delete-storm", "delete and retrieve", delete_storm, 300, 8, HARMLESS),
    Attack("read-flood", "reads", read_flood, 1000, 20, HARMLESS),
    Attack("post-flood", "requests", post_flood, 3000, 50, HARMLESS),
    Attack("background-flood", "requests in the background", background_flood, 3000, 50, HARMLESS),
    Attack("key-flood", "Idempotency-Key", key_flood, 1000, 20, HARMLESS),
    Attack("leaving-clients", "clients that leave", leaving_clients, 500, 20, HARMLESS),
    Attack("many-websockets", "WebSocket: connections", many_websockets, 500, 20, HARMLESS),
    Attack("websocket-frames", "WebSocket: frames", websocket_frames, 250, 20, HARMLESS),
    Attack("websocket-requests-wait", "WebSocket: requests that wait", websocket_requests_wait, 1000, 20, HARMLESS),
    Attack("large-frames", "WebSocket: large frames", large_frames, 64, 20, HARMLESS),
    Attack("slow-websockets", "5: WebSockets that do not read", slow_websockets, 50, 3, HARMLESS),
    Attack("ping-flood", "WebSocket: pings", ping_flood, 20_000, 200, HARMLESS),
)
