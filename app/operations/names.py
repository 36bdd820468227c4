"""Names in the messages for operators."""

from __future__ import annotations

from collections.abc import Collection

MOST = 20


def some_of(names: Collection[str]) -> str:
    """The names, as far as they fit into a line: `a, b`, `a, b and 7 more`, `none`."""
    shown = ", ".join(list(names)[:MOST]) or "none"
    return shown if len(names) <= MOST else f"{shown} and {len(names) - MOST} more"
