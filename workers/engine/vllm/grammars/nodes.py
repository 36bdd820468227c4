"""The nodes of a structural tag's format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.protocol.types import Json


def nodes_in(node: Any) -> Iterator[Json]:
    """The nodes of a format; schemas are not searched."""
    if isinstance(node, list):
        for each in node:
            yield from nodes_in(each)
    elif isinstance(node, dict):
        yield node
        if node.get("type") != "json_schema":
            yield from nodes_in(list(node.values()))


def texts_of(node: Json) -> Iterator[str]:
    """The literal texts of the node."""
    for key in ("begin", "end", "value"):
        found = node.get(key)
        yield from [found] if isinstance(found, str) else found if isinstance(found, list) else []
