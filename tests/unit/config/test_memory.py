"""Memory of a process that runs for long: collected, and returned to the system. In processes of their own."""

from __future__ import annotations

import subprocess
import sys

OLD_GARBAGE = """
import gc, weakref
from config.memory import freeze_gc

class Circle:
    def __init__(self):
        self.itself = self

gc.set_threshold(0)
engine = [[] for _ in range(200_000)]
freeze_gc()
circle = weakref.ref(old := Circle())
for generation in (0, 1):
    gc.collect(generation)
del old
_, young, middle = gc.get_threshold()
gc.set_threshold(10, young, middle)
events = []
while circle() is not None:
    events.append([])
    assert len(events) < 50_000
"""


def test_old_garbage_is_collected_however_large_the_engine_is() -> None:
    done = subprocess.run([sys.executable, "-c", OLD_GARBAGE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FLOOD = """
import psutil
from config.memory import return_large_blocks
return_large_blocks()
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


def test_large_blocks_are_returned_when_they_are_freed() -> None:
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4
