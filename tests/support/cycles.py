"""Finds reference cycles: objects that only the garbage collector would free."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Disables the garbage collector for the length of the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_objects(*kinds: str) -> dict[str, int]:
    """Counts the objects of these types, by the types' names, including garbage that was not collected yet."""
    found = Counter(type(each).__name__ for each in gc.get_objects())
    return {kind: found[kind] for kind in kinds}
