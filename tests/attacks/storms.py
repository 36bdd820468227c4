"""Attacks by number and by timing: readers that do not read, resumes, cancels, keys, WebSockets, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json

from websockets.asyncio.client import ClientConnection

from tests.attacks.attack import Attack
from tests.attacks.memory import LARGE, Demand
from tests.attacks.target import Ended, Target

_LARGE = "i" * 7_000_000
_CONTROL = "\x01"
"""One token, and six characters of JSON: a prompt within the context makes a log that no connection buffers."""


async def _background(target: Target, **fields: object) -> str:
    """The id of a background response that has ended and can be streamed again."""
    return str((await target.create(background=True, stream=True, **fields))["id"])


async def _large(target: Target, **fields: object) -> str:
    """The id of a completed response that is larger than what a connection buffers."""
    async with target.websocket() as opened:
        return str((await target.turn(opened, generate=False, **fields))["response"]["id"])


async def _stuck(target: Target, request: bytes, count: int) -> None:
    """`count` connections that ask and never read."""
    async with contextlib.AsyncExitStack() as opened:
        ports = []
        for _ in range(count):
            _reader, writer = await opened.enter_async_context(target.connection(slow=True))
            writer.write(request)
            ports.append(target.port_of(writer))
        await target.cut_off(*ports)


async def slow_readers(target: Target, count: int) -> None:
    """Streams of a log of 14 MB that nobody reads: its events show the instructions."""
    path = f"/v1/responses/{await _large(target, instructions=_LARGE)}?stream=true"
    await _stuck(target, target.head(f"GET {path} HTTP/1.1") + b"\r\n", count)


async def slow_pollers(target: Target, count: int) -> None:
    """The same without a stream."""
    path = f"/v1/responses/{await _large(target, instructions=_LARGE)}"
    await _stuck(target, (target.head(f"GET {path} HTTP/1.1") + b"\r\n") * 4, count)


async def slow_listers(target: Target, count: int) -> None:
    path = f"/v1/responses/{await _large(target, input=_LARGE)}/input_items"
    await _stuck(target, target.head(f"GET {path} HTTP/1.1") + b"\r\n", count)


async def slow_streams(target: Target, count: int) -> None:
    """Responses that write while their own clients do not read."""
    fields = {"model": target.model, "input": "/repeat 3000 word ", "instructions": _CONTROL * 350_000, "stream": True}
    await _stuck(target, target.post("/v1/responses", fields), count)


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
    path = f"/v1/responses/{await _large(target, instructions='i' * 1_000_000)}"
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
    request = target.post("/v1/responses", {"model": target.model, "input": "/hang 1", "stream": True})

    async def leave(number: int) -> None:
        async with target.connection() as (reader, writer):
            writer.write(request)
            await writer.drain()
            if number % 2:  # every second one sees the beginning of the answer
                await target.read_answer(reader)
            else:
                target.seen["left"] += 1

    await target.repeat(count, leave)


# -- WebSockets ------------------------------------------------------------------------------------------------------


async def many_websockets(target: Target, count: int) -> None:
    """Connections that say nothing until all of them are open."""
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            with contextlib.suppress(Ended):
                opened.append(await stack.enter_async_context(target.websocket()))
        for each in opened:
            await (await each.ping())
            target.seen["opened"] += 1


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
    """Requests of one stream behind a response that hangs. The last ones find no place to wait."""
    async with target.websocket() as opened:
        request = {"type": "response.create", "model": target.model, "input": "/hang 1"}
        for number in range(count):
            await opened.send(json.dumps({**request, "instructions": "i" * 100_000 if number else "i"}))
        await target.last_event(opened)


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
        "instructions": _CONTROL * 90_000,
    }

    ports: list[int] = []
    over = asyncio.Event()

    async def one(begun: asyncio.Event) -> None:
        try:
            async with target.websocket(slow=True) as socket:
                ports.append(int(socket.local_address[1]))
                begun.set()
                for number in range(4):  # The server may stop to read before the last one.
                    await socket.send(json.dumps({**body, "stream_id": f"s{number}"}))
                await over.wait()
        except Ended:
            begun.set()

    async with asyncio.TaskGroup() as group:
        for begun in (events := [asyncio.Event() for _ in range(count)]):
            group.create_task(one(begun))
        for begun in events:
            await begun.wait()
        await target.cut_off(*ports)
        over.set()


async def ping_flood(target: Target, count: int) -> None:
    async with target.websocket() as opened:
        for number in range(count):
            await opened.ping(number.to_bytes(4, "big") * 31)
        await target.turn(opened)


ATTACKS = (
    Attack(
        "slow-readers",
        "5: readers that do not read",
        slow_readers,
        150,
        5,
        {"200", "cut off"},
        demand=Demand(connections=150, readers=150, large=True),
    ),
    Attack(
        "slow-pollers",
        "5: readers that do not read",
        slow_pollers,
        100,
        4,
        {"200", "cut off"},
        demand=Demand(connections=100, readers=200, large=True),
    ),
    Attack(
        "slow-listers",
        "5: readers that do not read",
        slow_listers,
        100,
        4,
        {"200", "cut off"},
        demand=Demand(connections=100, readers=200, large=True),
    ),
    Attack(
        "slow-streams",
        "5: readers that do not read",
        slow_streams,
        20,
        5,
        {"cut off"},
        demand=Demand(connections=100, readers=200, large=True),
    ),
    Attack("resume-storm", "starting_after everywhere", resume_storm, 1000, 20, {"200", "400 starting_after"}),
    Attack("cancel-storm", "19: cancelling", cancel_storm, 300, 8, {"200"}),
    Attack("delete-storm", "delete and retrieve", delete_storm, 300, 8, {"200", "404"}),
    Attack("read-flood", "reads", read_flood, 1000, 20, {"200"}, demand=LARGE),
    Attack("post-flood", "requests", post_flood, 3000, 50, {"200"}, demand=Demand(connections=64, readers=64)),
    Attack(
        "background-flood",
        "requests in the background",
        background_flood,
        3000,
        50,
        {"200"},
        demand=Demand(connections=64, readers=64),
    ),
    Attack("key-flood", "Idempotency-Key", key_flood, 1000, 20, {"200", "400 Idempotency-Key"}),
    Attack(
        "leaving-clients",
        "clients that leave",
        leaving_clients,
        500,
        20,
        {"200", "left"},
        demand=Demand(connections=500),
    ),
    Attack(
        "many-websockets",
        "WebSocket: connections",
        many_websockets,
        500,
        20,
        {"opened"},
        full_only={"429"},
        demand=Demand(connections=500),
    ),
    Attack(
        "websocket-frames",
        "WebSocket: frames",
        websocket_frames,
        250,
        20,
        {"200", "400 invalid_frame", "400 invalid_json"},
        full_only={"400 stream_id"},
        demand=LARGE,
    ),
    Attack(
        "websocket-requests-wait",
        "WebSocket: requests that wait",
        websocket_requests_wait,
        1000,
        100,
        {"503"},
        demand=LARGE,
    ),
    Attack("large-frames", "WebSocket: large frames", large_frames, 64, 20, {"413", "closed"}, demand=LARGE),
    Attack(
        "slow-websockets",
        "5: WebSockets that do not read",
        slow_websockets,
        50,
        3,
        {"cut off"},
        demand=Demand(connections=100, readers=200, large=True),
    ),
    Attack("ping-flood", "WebSocket: pings", ping_flood, 20_000, 200, {"200"}),
)
