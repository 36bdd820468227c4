"""What is freed goes back to the system: in a process of its own, whose heap is new."""

from __future__ import annotations

import subprocess
import sys

import pytest

FLOOD = """
import psutil
from config.allocator import return_large_blocks
{first}
resident = psutil.Process().memory_info
del [bytearray(8 << 20)][:]
before, small = resident().rss, []
for _ in range(10):
    large = []
    for _ in range(4):
        large.append(bytearray(b"x" * (4 << 20)))
        small.append(bytearray(100_000))
    large.clear()
print((resident().rss - before) >> 20)
"""


def mib_kept(first: str) -> int:
    done = subprocess.run([sys.executable, "-c", FLOOD.format(first=first)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_blocks_are_returned_when_they_are_freed() -> None:
    assert mib_kept("return_large_blocks()") < 4


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_glibc_alone_keeps_some() -> None:
    assert mib_kept("") > 4
