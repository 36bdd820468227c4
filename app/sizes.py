"""What is small, and what is large: decided here and nowhere else.

Small work is done on the event loop, and in the batch of all others. Large work is done in a thread (heavy.py)
and in a batch of its own beside the others, in which projects take turns.

A thing is measured where it is made. Its size travels with it, as a field or a column. Only a prompt is measured again,
for each time that it is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import orjson

K = TypeVar("K")

LARGE_BYTES = 256 * 1024
"""More bytes are large. As JSON they take a millisecond to parse, as events four to replay; 8 MB of JSON take 30."""
MANY_ITEMS = 500
"""More items and parts of their content are large, too, however short: to prepare them takes two milliseconds."""
WEIGHT_BYTES = 64 * 1024
"""A thing counts as one more in a batch for every so many bytes, because Postgres takes statements up to 1 GiB."""


def is_large(size: int, items: int = 0) -> bool:
    """Whether a thing of `size` bytes, or of so many items and parts, is large."""
    return size > LARGE_BYTES or items > MANY_ITEMS


PARSED_FACTOR = 7
"""How many times their bytes bodies take in memory, once they are objects, and those of the worst JSON 40 times."""
VALUE_BYTES = 80
"""Bytes that a value takes while JSON is parsed; an object takes three times as many."""


def parsed_size(body: bytes) -> int:
    """Returns what JSON counts as while it is parsed: its bytes, or more if it has more values than usual."""
    values = body.count(b",") + body.count(b"[") + 3 * body.count(b"{")
    return max(len(body), (len(body) + VALUE_BYTES * values) // PARSED_FACTOR)


def weight(size: int) -> int:
    """The weight in a batch of a thing of `size` bytes."""
    return 1 + size // WEIGHT_BYTES


def item_count(items: Iterable[object]) -> int:
    """How many items, as JSON or as models, and parts of their content these are."""
    contents = (item.get("content") if isinstance(item, dict) else getattr(item, "content", None) for item in items)
    return sum(1 + (len(content) if isinstance(content, list) else 0) for content in contents)


def grouped(sizes: Mapping[K, int], most: int) -> list[list[K]]:
    """The keys in groups, in their order: each group has `most` bytes together, or a single key with more."""
    groups: list[list[K]] = []
    total = 0
    for key, size in sizes.items():
        total += size
        if total > most or not groups:
            groups.append([])
            total = size
        groups[-1].append(key)
    return groups


def json_size(values: Iterable[Any], most: int = LARGE_BYTES) -> int:
    """The bytes of these values as JSON, or a larger number than `most`, without measuring the rest.

    It is for the event loop: all of a large context would take a tenth of a second. A value that orjson cannot write,
    such as a number of more than 64 bits, counts as large.
    """
    size = 0
    for value in values:
        try:
            size += len(orjson.dumps(value))
        except orjson.JSONEncodeError:
            return most + 1
        if size > most:
            break
    return size
