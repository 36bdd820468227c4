"""Reading bodies: how many bytes a process holds, and when they are given back."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from app.access.caller import Caller
from app.api.body import read_body
from app.api.errors import api_error_of, refuse
from app.api.limits import BODY_BYTES, CALLER, Limits, release_body
from app.bounds import Bound, BoundReached, ShareReached, TotalReached
from config.settings import Settings

MIB = 1024 * 1024


def request_of(limits: Limits, *pieces: bytes, project: str | None = None) -> Request:
    left = list(pieces)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    state = {"limits": limits, CALLER: Caller(project, frozenset())}
    scope: dict[str, Any] = {"type": "http", "headers": [], "state": state}
    return Request(scope, receive)


def limits_of(total: int) -> Limits:
    return Limits.of(Settings(auth="keys", buffer_bytes=total))


async def test_bodies_together_are_bounded_and_small_ones_pass() -> None:
    limits = limits_of(2 * MIB)
    large = request_of(limits, b"a" * MIB, b"b" * MIB)
    assert len(await read_body(large, 8 * MIB)) == 2 * MIB
    with pytest.raises(TotalReached):
        await read_body(request_of(limits, b"a" * MIB), 8 * MIB)
    assert len(await read_body(request_of(limits, b"a" * BODY_BYTES), 8 * MIB)) == BODY_BYTES
    release_body(large.scope)
    assert len(await read_body(request_of(limits, b"a" * MIB), 8 * MIB)) == MIB


async def test_giving_a_body_back_twice_is_giving_it_back_once() -> None:
    limits = limits_of(2 * MIB)
    request = request_of(limits, b"a" * MIB)
    await read_body(request, 8 * MIB)
    release_body(request.scope)
    release_body(request.scope)
    assert limits.bodies.held == 0


async def test_the_large_bodies_of_one_project_leave_room_for_others() -> None:
    limits = limits_of(8 * MIB)
    for _ in range(7):
        await read_body(request_of(limits, b"a" * MIB, project="greedy"), 8 * MIB)
    with pytest.raises(ShareReached):
        await read_body(request_of(limits, b"a" * MIB, project="greedy"), 8 * MIB)
    await read_body(request_of(limits, b"a" * MIB, project="another"), 8 * MIB)


def test_without_keys_bodies_have_no_shares() -> None:
    limits = Limits.of(Settings(auth="open", buffer_bytes=2 * MIB))
    for _ in range(2):
        limits.bodies.take("default", BODY_BYTES + MIB)
    with pytest.raises(TotalReached):
        limits.bodies.take("default", BODY_BYTES + 1)


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
