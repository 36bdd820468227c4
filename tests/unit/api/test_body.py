"""Reading bodies: how many bytes a process holds, and when they are given back."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from app.api.body import read_body
from app.api.limits import Limits, release_body
from app.budget import FREE_BYTES, OverBudget
from config.settings import load_settings

MIB = 1024 * 1024


def request_of(limits: Limits, *pieces: bytes) -> Request:
    left = list(pieces)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    scope: dict[str, Any] = {"type": "http", "headers": [], "state": {"limits": limits}}
    return Request(scope, receive)


def limits_of(budget: int) -> Limits:
    limits = Limits.of(load_settings())
    limits.bodies._max_bytes = budget
    return limits


async def test_bodies_together_are_bounded_and_small_ones_pass() -> None:
    limits = limits_of(2 * MIB)
    large = request_of(limits, b"a" * MIB, b"b" * MIB)
    assert len(await read_body(large, 8 * MIB)) == 2 * MIB
    with pytest.raises(OverBudget):
        await read_body(request_of(limits, b"a" * MIB), 8 * MIB)
    assert len(await read_body(request_of(limits, b"a" * FREE_BYTES), 8 * MIB)) == FREE_BYTES
    release_body(large.scope)
    assert len(await read_body(request_of(limits, b"a" * MIB), 8 * MIB)) == MIB


async def test_giving_a_body_back_twice_is_giving_it_back_once() -> None:
    limits = limits_of(2 * MIB)
    request = request_of(limits, b"a" * MIB)
    await read_body(request, 8 * MIB)
    release_body(request.scope)
    release_body(request.scope)
    assert limits.bodies.held == 0
