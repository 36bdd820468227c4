"""Work on many items, in a thread: on the event loop it would hold up the tokens of every response of this worker.

A thread takes the interpreter for a millisecond at a time (`SWITCH_SECONDS`, workers/worker.py), so the loop goes on.
The largest work is done one after the other (`HEAVIEST`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from app.aio import HEAVIEST, HEAVY
from app.protocol.json_size import json_size

MANY = 500
"""Items and parts of their content; preparing as many takes one or two milliseconds."""
VERY_MANY = 20_000
LARGE = 1_000_000
"""Bytes of items that take seconds to tokenize."""

T = TypeVar("T")
Items = Sequence[Mapping[str, Any]]


async def off_loop(items: Items, function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`, in a thread if `items` are many."""
    count = _count(items)
    if count <= MANY:
        return function(*args)
    return await (HEAVIEST if count > VERY_MANY else HEAVY).run(partial(function, *args))


async def tokenized(items: Items, function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`, which tokenizes `items`, in a thread."""
    return await (HEAVIEST if _are_large(items) else HEAVY).run(partial(function, *args))


def _are_large(items: Items) -> bool:
    return _count(items) > VERY_MANY or json_size(items, LARGE) > LARGE


def _count(items: Items) -> int:
    return len(items) if len(items) > VERY_MANY else sum(map(_parts, items))


def _parts(item: Mapping[str, Any]) -> int:
    content = item.get("content")
    return 1 + (len(content) if isinstance(content, list) else 0)
