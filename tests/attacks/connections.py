"""Attacks before a request is understood: headers, framing, connections, and names of other sites."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from typing import Any

from tests.attacks.attack import Attack
from tests.attacks.memory import LARGE, Demand
from tests.attacks.target import HELD_SECONDS, Ended, Target
from tests.support.waiting import until

_EMPTY = "Content-Length: 2"
_PART = b"a" * 65536


async def one_long_header(target: Target, count: int) -> None:
    """`count` MiB of one header."""
    await target.raw(target.head() + b"X-Long: ", *[_PART] * (16 * count), b"\r\n\r\n")


async def many_headers(target: Target, count: int) -> None:
    lines = b"".join(b"X-H%d: 1\r\n" % number for number in range(count))
    await target.raw(target.head("GET /health/live HTTP/1.1"), lines, b"\r\n")


async def long_url(target: Target, count: int) -> None:
    """`count` MiB of URL."""
    await target.raw(b"GET /v1/models?x=", *[_PART] * (16 * count), b" HTTP/1.1\r\nHost: a\r\n\r\n")


async def long_trailers(target: Target, count: int) -> None:
    """`count` MiB of headers after a chunked body."""
    head = target.head("POST /v1/responses HTTP/1.1", "Transfer-Encoding: chunked")
    await target.raw(head + b"\r\n2\r\n{}\r\n0\r\nX-Long: ", *[_PART] * (16 * count), b"\r\n\r\n")


async def _hold(target: Target, count: int, beginning: bytes) -> None:
    """Opens `count` connections that write `beginning` and then wait."""
    await target.repeat(count, lambda _: target.raw(beginning), parallel=count)


async def silent_connections(target: Target, count: int) -> None:
    await _hold(target, count, b"")


async def half_sent_headers(target: Target, count: int) -> None:
    await _hold(target, count, target.head() + b"X-More: " + _PART[:4096])


async def half_sent_bodies(target: Target, count: int) -> None:
    """Each connection announces 8 MB and sends half of them."""
    await _hold(
        target, count, target.head("POST /v1/responses HTTP/1.1", "Content-Length: 8000000") + b"\r\n" + _PART * 61
    )


async def half_sent_chunks(target: Target, count: int) -> None:
    head = target.head("POST /v1/responses HTTP/1.1", "Transfer-Encoding: chunked")
    await _hold(target, count, head + b"\r\n7A1200\r\n" + _PART * 61)


async def slow_bodies(target: Target, count: int) -> None:
    """A byte now and then on each of `count` connections."""
    head = target.head("POST /v1/responses HTTP/1.1", "Content-Length: 1000") + b"\r\n"
    await target.repeat(count, lambda _: target.raw(head, *[b" "] * 20, pause=0.1), parallel=count)


async def waits_for_continue(target: Target, count: int) -> None:
    head = target.head("POST /v1/responses HTTP/1.1", "Content-Length: 1000", "Expect: 100-continue") + b"\r\n"
    await target.repeat(count, lambda _: target.raw(head), parallel=count)


async def endless_chunks(target: Target, count: int) -> None:
    """`count` MiB in chunks, whose end never comes."""
    head = target.head("POST /v1/responses HTTP/1.1", "Transfer-Encoding: chunked") + b"\r\n"
    await target.raw(head, *[b"10000\r\n" + _PART + b"\r\n"] * (16 * count))


async def tiny_chunks(target: Target, count: int) -> None:
    """A chunk for each byte."""
    head = target.head("POST /v1/responses HTTP/1.1", "Transfer-Encoding: chunked") + b"\r\n"
    await target.raw(head, *[b"1\r\n \r\n" * 10_000] * count, b"0\r\n\r\n")


async def chunk_extensions(target: Target, count: int) -> None:
    """`count` MiB of an extension that means nothing."""
    head = target.head("POST /v1/responses HTTP/1.1", "Transfer-Encoding: chunked") + b"\r\n"
    await target.raw(head + b"2;x=", *[_PART] * (16 * count), b"\r\n{}\r\n0\r\n\r\n")


async def bad_lengths(target: Target, count: int) -> None:
    lengths = ("-1", "1e3", "0x10", "99999999999999999999999", "+2", "2, 3", "\u00b2", "")
    for length in lengths[:count]:
        await target.raw(target.head("POST /v1/responses HTTP/1.1", f"Content-Length: {length}") + b"\r\n{}")


async def bad_chunk_sizes(target: Target, count: int) -> None:
    head = target.head("POST /v1/responses HTTP/1.1", "Transfer-Encoding: chunked") + b"\r\n"
    for size in (b"FFFFFFFFFFFFFFFFFF", b"-1", b"0x2", b"", b"2 2", b"\xff")[:count]:
        await target.raw(head + size + b"\r\n{}\r\n0\r\n\r\n")


async def smuggled_requests(target: Target, count: int) -> None:
    """Two readings of one body's length: a proxy in front may believe the other one. Only one answer may come."""
    inner = b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    both = [("Content-Length: 4", "Content-Length: 40"), ("Transfer-Encoding: chunked", "Content-Length: 40")]
    both += [("Transfer-Encoding: xchunked", _EMPTY), ("Transfer-Encoding : chunked", _EMPTY)]
    both += [("Transfer-Encoding: chunked, identity", _EMPTY), (" Transfer-Encoding: chunked", _EMPTY)]
    both += [("X: y\nTransfer-Encoding: chunked", _EMPTY), ("Transfer-Encoding: \x0bchunked", _EMPTY)]
    for headers in both[:count]:
        came = await target.raw(target.head("POST /v1/responses HTTP/1.1", *headers) + b"\r\n0\r\n\r\n" + inner)
        if b'"live"' in came or (came.count(b"HTTP/1.1 ") > 1 and b"HTTP/1.1 200" in came):
            target.seen["smuggled"] += 1


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


async def pipelined_creates(target: Target, count: int) -> None:
    """Background responses by pipelining, whose answers nobody reads."""
    body = b'{"model":"%s","input":"x","background":true,"max_output_tokens":1}' % target.model.encode()
    one = target.head("POST /v1/responses HTTP/1.1", f"Content-Length: {len(body)}") + b"\r\n" + body
    await target.raw(one * count)


async def foreign_hosts(target: Target, count: int) -> None:
    """What a page on a rebound name sends: DNS rebinding."""
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1].evil.example", "a@127.0.0.1")[
        :count
    ]:
        await target.send("GET", "/v1/models", headers={"host": host})
        await target.send("POST", "/v1/responses", headers={"host": host}, json={"model": target.model, "input": "x"})


async def no_host(target: Target, count: int) -> None:
    for lines in (b"", b"Host: a\r\nHost: b\r\n", b"Host:\r\n", b"Host: a b\r\n")[:count]:
        await target.raw(b"GET /v1/models HTTP/1.1\r\n" + lines + b"\r\n")


async def foreign_origins(target: Target, count: int) -> None:
    """WebSockets of web pages on other sites, also those on a rebound name, whose Host and Origin agree."""
    forged: list[dict[str, Any]] = [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://evil.example", "headers": {"Host": "evil.example"}},
        {"origin": f"http://127.0.0.1:{target.port}.evil.example"},
    ]
    for options in forged[:count]:
        with contextlib.suppress(Ended):
            async with target.websocket(**options):
                target.seen["opened"] += 1


async def preflight_flood(target: Target, count: int) -> None:
    headers = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    await target.repeat(count, lambda _: target.send("OPTIONS", "/v1/responses", headers=headers))


async def head_flood(target: Target, count: int) -> None:
    await target.repeat(count, lambda _: target.send("HEAD", "/v1/models"))


async def odd_methods(target: Target, count: int) -> None:
    for line in (
        "TRACE / HTTP/1.1",
        "CONNECT 127.0.0.1:22 HTTP/1.1",
        "PRI * HTTP/2.0",
        "GET http://evil.example/v1/models HTTP/1.1",
        "GET /v1/models HTTP/9.9",
        "GET /../../etc/passwd HTTP/1.1",
        "POST /v1/responses HTTP/0.9",
        "\x16\x03\x01\x02",
    )[:count]:
        await target.raw(target.head(line) + b"\r\n")


async def upgrade_to_http2(target: Target, count: int) -> None:
    headers = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    await target.repeat(count, lambda _: target.raw(target.head("GET /v1/models HTTP/1.1", *headers) + b"\r\n"))


async def compressed_bombs(target: Target, count: int) -> None:
    """100 MB of blanks in 100 kB."""
    bomb = gzip.compress(b" " * 100_000_000, 1)
    for encoding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip")[:count]:
        await target.body(bomb, content_encoding=encoding)


async def odd_header_values(target: Target, count: int) -> None:
    """Bytes that are no text, where the server echoes or stores a header."""
    values = (b"\xff\xfe", b"a" * 60_000, "\u202e".encode(), b"a\tb", b"\x7f", b'"><script>')
    for name in (b"X-Request-Id", b"Idempotency-Key", b"Origin", b"Content-Type"):
        for value in values[:count]:
            head = target.head("POST /v1/responses HTTP/1.1", _EMPTY) + name + b": " + value + b"\r\n"
            await target.raw(head + b"\r\n{}")


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


async def guesses_at_redis(target: Target, count: int) -> None:
    """The embedded Valkey asks for its password."""
    import redis.asyncio

    port = int(target.projects.redis_url.rsplit(":", 1)[1].split("/")[0])
    for password in [None, "", "longhaul", "x" * 100_000][:count]:
        client: Any = redis.asyncio.Redis(host=target.host, port=port, password=password)
        async with client:
            try:
                await client.publish("x", b"y")
                target.seen["opened"] += 1
            except redis.RedisError:
                target.seen["401"] += 1


ATTACKS = (
    Attack("one-long-header", "6: headers without bound", one_long_header, 228, 4, {"431"}),
    Attack("many-headers", "6: headers without bound", many_headers, 200_000, 20_000, {"431"}),
    Attack("long-url", "6: URL without bound", long_url, 64, 4, {"414"}),
    Attack("long-trailers", "6: headers without bound", long_trailers, 64, 4, {"431"}),
    Attack(
        "silent-connections", "6: no deadline", silent_connections, 500, 20, {"closed"}, demand=Demand(connections=500)
    ),
    Attack(
        "half-sent-headers",
        "6: no deadline for a header",
        half_sent_headers,
        500,
        20,
        {"408"},
        demand=Demand(connections=500),
    ),
    *(
        Attack(
            name,
            "6: no deadline for a body",
            run,
            200,
            4,
            {"408"},
            full_only={"429"},
            demand=Demand(connections=200, large=True),
        )
        for name, run in (("half-sent-bodies", half_sent_bodies), ("half-sent-chunks", half_sent_chunks))
    ),
    Attack("slow-bodies", "6: no deadline for a body", slow_bodies, 300, 10, {"408"}, demand=Demand(connections=300)),
    Attack(
        "waits-for-continue", "HTTP/1.1: Expect", waits_for_continue, 300, 10, {"100"}, demand=Demand(connections=300)
    ),
    Attack("endless-chunks", "HTTP/1.1: chunked encoding", endless_chunks, 256, 16, {"413"}, demand=LARGE),
    Attack("tiny-chunks", "HTTP/1.1: chunked encoding", tiny_chunks, 200, 3, {"400 invalid_json"}, demand=LARGE),
    Attack("chunk-extensions", "HTTP/1.1: chunked encoding", chunk_extensions, 64, 2, {"431"}),
    Attack("bad-lengths", "HTTP/1.1: Content-Length", bad_lengths, 8, 8, {"400 invalid_http"}),
    Attack("bad-chunk-sizes", "HTTP/1.1: chunked encoding", bad_chunk_sizes, 6, 6, {"400 invalid_http"}),
    Attack("smuggled-requests", "HTTP/1.1: request smuggling", smuggled_requests, 8, 8, {"400 invalid_http"}),
    Attack("pipelined-requests", "HTTP/1.1: pipelining", pipelined_requests, 20_000, 200, {"200"}),
    Attack("pipelined-creates", "HTTP/1.1: pipelining", pipelined_creates, 500, 20, {"200"}),
    Attack("foreign-hosts", "23: DNS rebinding", foreign_hosts, 5, 5, {"421"}),
    Attack("no-host", "23: Host header", no_host, 4, 4, {"421"}),
    Attack("foreign-origins", "23: WebSockets of other sites", foreign_origins, 4, 4, {"403", "421"}),
    Attack("preflight-flood", "OPTIONS", preflight_flood, 3000, 50, {"405"}),
    Attack("head-flood", "HEAD", head_flood, 3000, 50, {"200"}),
    Attack(
        "odd-methods",
        "HTTP/1.1: request line",
        odd_methods,
        8,
        8,
        {"200", "400 invalid_http", "400 invalid_json", "404"},
    ),
    Attack("upgrade-to-http2", "HTTP/1.1: Upgrade", upgrade_to_http2, 100, 3, {"200"}),
    Attack("compressed-bombs", "compressed bodies", compressed_bombs, 6, 6, {"415"}, demand=LARGE),
    Attack(
        "odd-header-values",
        "Unicode in headers",
        odd_header_values,
        6,
        6,
        {"400 Idempotency-Key", "400 invalid_http", "400 model"},
    ),
    Attack("forged-messages", "25: forged pub/sub", forged_messages, 200, 5, {"200"}),
    Attack("guesses-at-redis", "25: Redis' door", guesses_at_redis, 4, 4, {"401"}),
)
