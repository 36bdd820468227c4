"""Work on many items, in a thread: on the event loop it would hold up the tokens of every response of this worker.

A thread takes the interpreter for a millisecond at a time (`SWITCH_SECONDS`, workers/worker.py), so the loop goes on.
Large contexts are tokenized one after the other (`HEAVIEST`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from app.aio import HEAVIEST, HEAVY
from app.sizes import is_large, json_size

T = TypeVar("T")
Items = Sequence[Mapping[str, Any]]


async def off_loop(items: Items, function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`, in a thread if `items` are many."""
    return await HEAVY.run(partial(function, *args)) if _are_many(items) else function(*args)


async def tokenized(items: Items, function: Callable[..., T], *args: Any) -> T:
    """`function(*args)`, which tokenizes `items`, in a thread."""
    are_large = _are_many(items) or is_large(json_size(items))
    return await (HEAVIEST if are_large else HEAVY).run(partial(function, *args))


def _are_many(items: Items) -> bool:
    return is_large(0, len(items)) or is_large(0, sum(map(_parts, items)))


def _parts(item: Mapping[str, Any]) -> int:
    content = item.get("content")
    return 1 + (len(content) if isinstance(content, list) else 0)
