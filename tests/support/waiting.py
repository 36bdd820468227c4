"""Waits for a condition, never for a length of time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

What = str | Callable[[], str]

PAUSE = 0.02
PATIENCE_SECONDS = 60.0
"""Longer than anything takes on a machine that is five times slower: it ends a test that hangs."""


async def until(
    check: Callable[[], T | Awaitable[T]],
    timeout: float = PATIENCE_SECONDS,  # noqa: ASYNC109 - asyncio.timeout would not name the condition
    what: What = "",
    pause: float = PAUSE,
) -> T:
    """Calls `check` until it returns a true value, and returns it. Raises AssertionError after `timeout` seconds.

    Between two calls there are `pause` seconds.

    The error names `what` the test waited for: a function is called only then, so it can tell how things stand.
    """
    end = time.monotonic() + timeout
    while True:
        result = check()
        value: T = await result if inspect.isawaitable(result) else result
        if value:
            return value
        assert time.monotonic() < end, f"not within {timeout} s: {_described(what, check)}"
        await asyncio.sleep(pause)


def until_sync(check: Callable[[], T], timeout: float = PATIENCE_SECONDS, what: What = "", pause: float = PAUSE) -> T:
    """`until` for tests without an event loop, with `pause` seconds between two calls of `check`."""
    end = time.monotonic() + timeout
    while not (value := check()):
        assert time.monotonic() < end, f"not within {timeout} s: {_described(what, check)}"
        time.sleep(pause)
    return value


def _described(what: What, check: object) -> object:
    return what() if callable(what) else what or check
