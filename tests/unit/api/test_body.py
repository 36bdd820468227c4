"""Reading bodies: how many bytes a process holds, and when they are given back."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from starlette.requests import Request
from starlette.types import Message

from app.api.body import read_body
from app.api.errors import api_error_of, refuse
from app.api.holdings import BODY_BYTES, BOUNDS, ProcessBounds, holdings_of
from app.bounds import Bound, BoundReached, ShareReached, TotalReached
from app.protocol.errors import InvalidRequest, TooLarge, UnsupportedMedia
from config.settings import Settings

MIB = 1024 * 1024


def request_of(
    bounds: ProcessBounds, *pieces: bytes, project: str | None = None, encoding: str | None = None
) -> Request:
    left = list(pieces)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    headers = [] if encoding is None else [(b"content-encoding", encoding.encode())]
    scope: dict[str, Any] = {"type": "http", "headers": headers, "state": {BOUNDS: bounds}}
    holdings_of(scope).project = project
    return Request(scope, receive)


def bounds_of(total: int) -> ProcessBounds:
    return ProcessBounds.of(Settings(auth="keys", buffer_bytes=total))


async def test_bodies_together_are_bounded_and_small_ones_pass() -> None:
    bounds = bounds_of(2 * MIB)
    large = request_of(bounds, b"a" * MIB, b"b" * MIB)
    assert len(await read_body(large, 8 * MIB)) == 2 * MIB
    with pytest.raises(TotalReached):
        await read_body(request_of(bounds, b"a" * MIB), 8 * MIB)
    assert len(await read_body(request_of(bounds, b"a" * BODY_BYTES), 8 * MIB)) == BODY_BYTES
    for _ in range(2):
        holdings_of(large.scope).release_body()
        assert bounds.bodies.held == 0
    assert len(await read_body(request_of(bounds, b"a" * MIB), 8 * MIB)) == MIB


PACKED = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "ZSTD": lambda body: zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(body),
}


@pytest.mark.parametrize("size", [100, 3 * MIB])
@pytest.mark.parametrize("encoding", PACKED)
async def test_a_compressed_body_is_decompressed_and_counts_as_what_it_is(encoding: str, size: int) -> None:
    bounds, body = bounds_of(8 * MIB), b"[" + b"a" * (size - 1)
    request = request_of(bounds, PACKED[encoding](body), encoding=encoding)
    assert await read_body(request, size) == body
    assert bounds.bodies.held == max(0, size - BODY_BYTES)
    assert await read_body(request_of(bounds, b"", encoding=encoding), size) == b""


@pytest.mark.parametrize("encoding", PACKED)
async def test_a_bomb_is_too_large_before_it_is_in_memory(encoding: str) -> None:
    bounds, bomb = bounds_of(64 * MIB), PACKED[encoding](bytes(32 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            await read_body(request_of(bounds, bomb, encoding=encoding), 2 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    bounds = bounds_of(4 * MIB)
    bounds.bodies.take(None, MIB)
    with pytest.raises(TotalReached):
        await read_body(request_of(bounds, bomb, encoding=encoding), 64 * MIB)


@pytest.mark.parametrize(
    "damage", [lambda body: body[:9], lambda body: b"x" + body, lambda body: body + b"more", lambda _: b"{}"]
)
@pytest.mark.parametrize("encoding", PACKED)
async def test_a_damaged_stream_is_an_invalid_request(encoding: str, damage: Callable[[bytes], bytes]) -> None:
    sent = damage(PACKED[encoding](b'{"model": "m"}'))
    with pytest.raises(InvalidRequest, match="Content-Encoding") as refused:
        await read_body(request_of(bounds_of(MIB), sent, encoding=encoding), MIB)
    assert type(refused.value) is InvalidRequest


async def test_a_window_larger_than_http_allows_is_refused() -> None:
    window = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, write_content_size=False)
    sent = zstandard.ZstdCompressor(compression_params=window).compressobj()
    body = sent.compress(bytes(9 * MIB)) + sent.flush()
    with pytest.raises(InvalidRequest, match="zstd"):
        await read_body(request_of(bounds_of(64 * MIB), body, encoding="zstd"), 16 * MIB)


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "gzip, br", "identity, gzip"])
async def test_another_encoding_is_refused_with_those_that_are_read(encoding: str) -> None:
    with pytest.raises(UnsupportedMedia, match="use 'gzip', 'deflate', 'zstd', or none"):
        await read_body(request_of(bounds_of(MIB), b"x", encoding=encoding), MIB)


async def test_the_large_bodies_of_one_project_leave_room_for_others() -> None:
    bounds = bounds_of(8 * MIB)
    for _ in range(7):
        await read_body(request_of(bounds, b"a" * MIB, project="greedy"), 8 * MIB)
    with pytest.raises(ShareReached):
        await read_body(request_of(bounds, b"a" * MIB, project="greedy"), 8 * MIB)
    await read_body(request_of(bounds, b"a" * MIB, project="another"), 8 * MIB)


def test_without_keys_bodies_have_no_shares() -> None:
    bounds = ProcessBounds.of(Settings(auth="open", buffer_bytes=2 * MIB))
    for _ in range(2):
        bounds.bodies.take("default", BODY_BYTES + MIB)
    with pytest.raises(TotalReached):
        bounds.bodies.take("default", BODY_BYTES + 1)


@pytest.mark.parametrize(("kind", "status"), [(TotalReached, 503), (ShareReached, 429)])
def test_a_refusal_names_the_bound_and_says_when_to_come_again(kind: type[BoundReached], status: int) -> None:
    error = api_error_of(kind(Bound("large requests", 512, unit="bytes of ")))
    assert (
        error is not None
        and error.error.code == "too_many_large_requests"
        and "512 bytes of large requests" in error.error.message
    )
    answer = refuse(error)
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "1")
