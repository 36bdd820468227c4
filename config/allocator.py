"""The C library's allocator in processes that hold large blocks for short."""

from __future__ import annotations

import ctypes
from contextlib import suppress

M_MMAP_THRESHOLD = -3
"""Of glibc's malloc.h."""
LARGE_BLOCK_BYTES = 256 * 1024


def return_large_blocks() -> None:
    """Has glibc return each large block to the system once it is freed. With other C libraries it does nothing.

    By default glibc does so until it has freed one: then it takes blocks of up to 32 MiB from its heap, where small
    ones that stay lie between them. An API process kept 100 MiB of each flood of large requests (tests/attacks).
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
