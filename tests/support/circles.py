"""What only the garbage collector would free: objects in circles of references."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """The garbage collector stays away for the length of the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive(*kinds: str) -> dict[str, int]:
    """How many objects of these types (by their names) there are, found or not by the garbage collector."""
    found = Counter(type(each).__name__ for each in gc.get_objects())
    return {kind: found[kind] for kind in kinds}
