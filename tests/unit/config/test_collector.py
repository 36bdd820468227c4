"""The garbage collector of a process that runs for long, tested in a process of its own."""

from __future__ import annotations

import subprocess
import sys

OLD_GARBAGE = """
import gc, weakref
from config import collector

class Circle:
    def __init__(self):
        self.itself = self

gc.set_threshold(0)
engine = [[] for _ in range(200_000)]
collector.freeze_gc()
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
