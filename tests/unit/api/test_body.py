"""Reading bodies: how many bytes a process holds, and when they are given back."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from app.api.body import read_body
from app.api.errors import api_error_of, refuse
from app.api.holdings import BODY_BYTES, BOUNDS, ProcessBounds, holdings_of
from app.bounds import Bound, BoundReached, ShareReached, TotalReached
from config.settings import Settings

MIB = 1024 * 1024


def request_of(bounds: ProcessBounds, *pieces: bytes, project: str | None = None) -> Request:
    left = list(pieces)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    scope: dict[str, Any] = {"type": "http", "headers": [], "state": {BOUNDS: bounds}}
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
    holdings_of(large.scope).release_body()
    assert len(await read_body(request_of(bounds, b"a" * MIB), 8 * MIB)) == MIB


async def test_giving_a_body_back_twice_is_giving_it_back_once() -> None:
    bounds = bounds_of(2 * MIB)
    request = request_of(bounds, b"a" * MIB)
    await read_body(request, 8 * MIB)
    holdings_of(request.scope).release_body()
    holdings_of(request.scope).release_body()
    assert bounds.bodies.held == 0


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
