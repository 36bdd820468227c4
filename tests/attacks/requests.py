"""Attacks by one request, or by many alike: framing, bodies, prompts, and readers that do not read."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import struct
import zlib
from typing import Any

import zstandard

from tests.attacks.attack import attack
from tests.attacks.memory import CONTEXTS, LARGE, WALLED, Demand
from tests.attacks.target import HELD_SECONDS, Ended, Json, Target
from tests.support.waiting import until

MEGABYTE = 1_000_000
ITEMS = 9_900
TOOLS = 1000
"""Just within the bounds of one request: what exceeds them is refused, and these must be harmless."""
_PART = b"a" * 65536
_LARGE = "i" * 7_000_000
_CONTROL = "\x01"
"""One token, and six characters of JSON: a prompt within the context makes a log that no connection buffers."""


@attack(
    "no deadline for a body",
    200,
    4,
    {"408"},
    full_only={"429"},
    demand=Demand(connections=200, large=True),
)
async def half_sent_bodies(target: Target, count: int) -> None:
    """Each connection announces 8 MB and sends half of them."""
    beginning = target.head("POST /v1/responses HTTP/1.1", "Content-Length: 8000000") + b"\r\n" + _PART * 61
    await target.repeat(count, lambda _: target.raw(beginning), parallel=count)


@attack("chunked encoding", 200, 3, {"400 invalid_json"}, demand=LARGE)
async def tiny_chunks(target: Target, count: int) -> None:
    """A chunk for each byte."""
    head = target.head("POST /v1/responses HTTP/1.1", "Transfer-Encoding: chunked") + b"\r\n"
    await target.raw(head, *[b"1\r\n \r\n" * 10_000] * count, b"0\r\n\r\n")


@attack("pipelining", 20000, 200, {"200"})
async def pipelined_requests(target: Target, count: int) -> None:
    """`count` requests at once on a connection that reads one answer: the server drops the others, which may reset
    the connection."""
    one = target.head("GET /v1/models HTTP/1.1") + b"\r\n"
    async with target.connection(slow=True) as (reader, writer):
        answer = asyncio.create_task(target.read_answer(reader))
        writer.write(one * count)
        with contextlib.suppress(ConnectionError):
            await until(lambda: target.port_of(writer) not in target.served_ports(), HELD_SECONDS)
        await answer


@attack("compressed bodies", 6, 6, {"400 invalid_encoding", "413", "415"}, demand=LARGE)
async def compressed_bombs(target: Target, count: int) -> None:
    """100 MB of blanks in 100 kB and less."""
    blanks = b" " * 100_000_000
    packed = gzip.compress(blanks, 1)
    await target.body(zstandard.compress(blanks), content_encoding="zstd")
    for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip")[:count]:
        await target.body(packed, content_encoding=encoding)


@attack("forged pub/sub", 200, 5, {"200"})
async def forged_messages(target: Target, count: int) -> None:
    """Bytes on the channels between API and workers, from somebody who can reach Redis."""
    import redis.asyncio

    client: Any = redis.asyncio.from_url(target.projects.redis_url)
    async with client:
        for _ in range(count):
            for channel in await client.pubsub_channels("*"):
                for forged in (b"\xff", b"", b"{}", b"\x00" * 64, b"\xff" * 65536):
                    await client.publish(channel, forged)
    await target.create()


# -- bodies ----------------------------------------------------------------------------------------------------------


def _body(target: Target, fields: str) -> bytes:
    """A request whose further fields are written out, so that they need not be JSON that Python would write."""
    return f'{{"model":"{target.model}","max_output_tokens":4,{fields}}}'.encode()


@attack("many and repeated keys", 300000, 5000, {"200", "400 invalid_value", "400 metadata"}, demand=LARGE)
async def many_keys(target: Target, count: int) -> None:
    keys = ",".join(f'"k{number}":1' for number in range(count))
    await target.body(_body(target, f'"input":"x",{keys}'))
    await target.body(_body(target, f'"input":"x","metadata":{{{keys}}}'))
    await target.body(_body(target, '"input":"x",' + ",".join(['"user":"a"'] * count)))


@attack("objects that are kept nowhere", 50, 1, {"200", "400 client_metadata"}, demand=LARGE)
async def client_metadata_flood(target: Target, count: int) -> None:
    for fields in ({"k": "v" * 60_000}, {"k": "v" * 8_000_000}, {str(n): "" for n in range(100_000)}):
        await target.repeat(count, lambda _, fields=fields: target.create(client_metadata=fields))  # type: ignore[misc]


@attack("JSON schemas with large patterns", 5000, 100, {"200"}, full_only={"400 text"}, demand=LARGE)
async def json_schemas(target: Target, count: int) -> None:
    """Patterns, bounds and alternatives that a compiler of grammars would unroll."""
    kinds: list[Json] = [
        {"type": "string", "pattern": f"(a{{1,{count}}}){{1,{count}}}"},
        {"type": "string", "pattern": "(a|a)*" * count},
        {"type": "string", "pattern": "[" + "".join(map(chr, range(0x4E00, 0x4E00 + count))) + "]+"},
        {"type": "string", "minLength": count * 1000, "maxLength": 10**9},
        {"type": "array", "items": {"type": "string"}, "minItems": count * 1000},
        {"anyOf": [{"const": f"c{number}"} for number in range(count)]},
        {"enum": ["e" * 100 + str(number) for number in range(count)]},
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}},
        {"$ref": "#/$defs/a"},
    ]
    for kind in kinds:
        properties = {"a": kind}
        schema = {
            "type": "object",
            "properties": properties,
            "required": ["a"],
            "additionalProperties": False,
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]}},
        }
        await target.create(text={"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}})


def _png(width: int, height: int, rows: bytes) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


@attack("images", 20, 2, {"400 input"}, demand=LARGE)
async def image_bombs(target: Target, count: int) -> None:
    """Small files that say that they are large; files that are none."""
    bomb = _png(60_000, 60_000, b"\0" * 10_000_000)
    for url in (
        bomb,
        _png(2**31 - 1, 2**31 - 1, b""),
        _png(0, 0, b""),
        "data:image/png;base64,AAAA",
        "file:///etc/passwd",
    ):
        image = {"type": "input_image", "image_url": url}
        await target.create(input=[{"role": "user", "content": [image] * count}])


# -- prompts ---------------------------------------------------------------------------------------------------------


def _message(text: str, role: str = "user") -> Json:
    return {"role": role, "content": text}


def _function(number: int, size: int = 20, **fields: Any) -> Json:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "d" * size}}}
    return {"type": "function", "name": f"f{number}", "parameters": parameters, **fields}


@attack("reference amplification", 16, 4, {"200", "400 input", "400 items"}, demand=CONTEXTS)
async def references(target: Target, count: int) -> None:
    """References to `count` stored messages of 4 MB, and as many to one of them."""
    found: list[Json] = []
    for _ in range(count):
        stored = await target.create(input=[_message("x" * 4 * MEGABYTE)], background=True)
        listed = await target.send("GET", f"/v1/responses/{stored['id']}/input_items")
        found.append({"type": "item_reference", "id": listed["data"][0]["id"]})
    for background in (True, False):
        for items in (found, found[:2], found[:1] * 300):
            await target.create(input=items, background=background)
    await target.send("POST", "/v1/conversations", json={"items": found})


@attack("quadratic prompt building", 49000, 2000, {"200"}, full_only={"400 input"}, demand=LARGE)
async def system_messages(target: Target, count: int) -> None:
    for role in ("system", "developer"):
        for items in (count, min(count, ITEMS), 1000):
            await target.create(input=[*[_message("s" * 137, role)] * items, _message("x")])


@attack("input_tokens", 12, 1, {"200"}, demand=LARGE)
async def count_flood(target: Target, count: int) -> None:
    """`input_tokens` of 7.5 MB, one after the other, and several at once."""
    body = {"model": target.model, "input": "ab " * (5 * MEGABYTE // 2)}
    await target.repeat(count, lambda _: target.send("POST", "/v1/responses/input_tokens", json=body), parallel=3)


@attack("compact", 100, 2, {"200"}, demand=LARGE)
async def compact_flood(target: Target, count: int) -> None:
    long = [_message("/summary short"), *[_message("ab " * 30_000)] * 4]  # the scripted engine's summary is short
    body = {"model": target.model, "input": long}
    await target.repeat(count, lambda _: target.send("POST", "/v1/responses/compact", json=body))


@attack("contexts over a WebSocket", 40, 2, {"200"}, full_only={"400 previous_response_id"}, demand=CONTEXTS)
async def long_chain(target: Target, count: int) -> None:
    """Responses of 7 MB that continue each other and generate nothing, on one WebSocket."""
    async with target.websocket() as opened:
        previous: Json = {}
        for _ in range(count):
            event = await target.turn(opened, input="x" * 7 * MEGABYTE, generate=False, **previous)
            if event["type"] != "response.completed":
                break
            previous = {"previous_response_id": event["response"]["id"]}


@attack(
    "contexts of a conversation",
    20,
    1,
    {"200", "400 input"},
    full_only={"400 items"},
    demand=CONTEXTS,
)
async def large_conversation(target: Target, count: int) -> None:
    """`count` times 7 MB in a conversation, and responses that read it."""
    path = f"/v1/conversations/{(await target.send('POST', '/v1/conversations', json={}))['id']}"
    for _ in range(count):
        await target.send("POST", f"{path}/items", json={"items": [_message("x" * 350_000)] * 20})
    conversation = path.rsplit("/", 1)[1]
    await target.repeat(4, lambda _: target.create(conversation=conversation))
    await target.send("GET", f"{path}/items?limit=100")
    await target.send("DELETE", path)


@attack("thousands of tools", 20000, 500, {"200", "400 input", "400 tools"}, demand=LARGE)
async def thousands_of_tools(target: Target, count: int) -> None:
    for tools in (count, min(count, TOOLS)):
        await target.create(tools=[_function(number) for number in range(tools)])
        await target.create(tools=[_function(0)] * tools)
    await target.create(tools=[_function(0, 7 * MEGABYTE)], tool_choice="required")
    await target.create(tools=[_function(n, strict=True) for n in range(min(count, TOOLS))], tool_choice="required")


@attack("outputs without end", 300, 8, {"200"}, demand=LARGE)
async def large_outputs_in_parallel(target: Target, count: int) -> None:
    """Responses that would write without end, in the background; cancelled at the end."""
    fields = {"max_output_tokens": 2**31 - 1, "ignore_eos": True, "background": True, "input": "/repeat 300000 x"}
    created = []

    async def start(_: int) -> None:
        created.append(await target.create(**fields))

    await target.repeat(count, start)
    await target.projects.cancel(created)


# -- readers, WebSockets and storms ----------------------------------------------------------------------------------


@attack(
    "readers that do not read",
    100,
    4,
    {"200", "cut off"},
    demand=Demand(connections=100, readers=200, large=True),
)
async def slow_pollers(target: Target, count: int) -> None:
    """`count` connections that ask for an answer of 7 MB four times each, and never read."""
    async with target.websocket() as opened:
        path = f"/v1/responses/{(await target.turn(opened, generate=False, instructions=_LARGE))['response']['id']}"
    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for _ in range(count):
            _reader, writer = await stack.enter_async_context(target.connection(slow=True))
            writer.write((target.head(f"GET {path} HTTP/1.1") + b"\r\n") * 4)
            ports.append(target.port_of(writer))
        await target.cut_off(*ports)


@attack(
    "WebSockets that do not read",
    50,
    3,
    {"cut off"},
    demand=Demand(connections=100, readers=200, large=True),
)
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


@attack(
    "requests that wait on WebSockets",
    2112,
    80,
    {"400 type"},
    full_only={"503"},
    demand=WALLED,
)
async def many_websocket_requests_wait(target: Target, count: int) -> None:
    """The same on eight connections, with JSON that takes twenty times its bytes as objects."""
    held = {"type": "response.create", "model": target.model, "input": "/hang 1"}
    waits = json.dumps({**held, "client_metadata": {"values": [{"a": number} for number in range(1500)]}})
    async with contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(target.websocket()) for _ in range(8)]
        for opened in sockets:
            await opened.send(json.dumps(held))
            for _ in range(count // 8):
                await opened.send(waits)
            await opened.send("{}")
        for opened in sockets:
            await target.last_event(opened)
    async with target.websocket() as opened:  # another is still heard
        await opened.send("{}")
        await target.last_event(opened)


@attack("cancelling", 300, 8, {"200"})
async def cancel_storm(target: Target, count: int) -> None:
    """Responses that hang, each cancelled several times at once."""

    async def one(_: int) -> None:
        created = await target.create(background=True, input="/hang 1", max_output_tokens=None)
        if "id" in created:
            path = f"/v1/responses/{created['id']}/cancel"
            await asyncio.gather(*(target.send("POST", path) for _ in range(3)))

    await target.repeat(count, one)


@attack("requests", 3000, 50, {"200"}, demand=Demand(connections=64, readers=64))
async def post_flood(target: Target, count: int) -> None:
    await target.repeat(count, lambda _: target.create(), parallel=64)
