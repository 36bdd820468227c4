"""Memory in processes that run for long: Python's garbage collector, and the C library's allocator."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

M_MMAP_THRESHOLD = -3
"""From glibc's malloc.h."""
LARGE_BLOCK_BYTES = 256 * 1024


def freeze_gc() -> None:
    """Exempts all present objects from collection, and turns it on. Call it once everything is loaded.

    An engine has a million objects that stay, and a full collection would look at each of them. The plain way is not
    to call this function (docs/internals/performance.md).
    """
    gc.collect()
    gc.freeze()
    # CPython starts a full collection at 25 % growth. This second call resets the baseline: without it old garbage
    # would stay until the process had grown by a quarter of the engine.
    gc.collect()
    gc.enable()


def return_large_blocks() -> None:
    """Has glibc return each large block to the system once it is freed. With other C libraries it does nothing.

    By default glibc does so until it has freed one: then it takes blocks of up to 32 MiB from its heap, where small
    ones that stay lie between them. An API process kept 100 MiB of each flood of large requests (tests/attacks).
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
