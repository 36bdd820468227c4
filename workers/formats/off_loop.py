"""Work on many items, in a thread: on the event loop it would hold up the tokens of every response of this worker.

A thread takes the interpreter for a millisecond at a time (`SWITCH_SECONDS`, workers/worker.py), so the loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

MANY = 500
"""Items and parts of their content; preparing as many takes one or two milliseconds."""

T = TypeVar("T")


async def off_loop(items: Sequence[Mapping[str, Any]], function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`, in a thread if `items` are many."""
    return await asyncio.to_thread(function, *args) if are_many(items) else function(*args)


def are_many(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether work on every item should not be done on the event loop."""
    return len(items) > MANY or sum(map(_parts, items)) > MANY


def _parts(item: Mapping[str, Any]) -> int:
    content = item.get("content")
    return 1 + (len(content) if isinstance(content, list) else 0)
