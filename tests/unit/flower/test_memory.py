"""Flower's memory does not grow with what has passed: 110 MiB after 50,000 responses, and after 800,000."""

from __future__ import annotations

import gc
import itertools
import time
import tracemalloc
from typing import Any

from flower.events import EventsState

from app.queue.message import TASK

MOST = 40
"""Tasks that it remembers; 10,000 unless FLOWER_MAX_TASKS says otherwise."""


def hear(state: Any, ids: range, clock: itertools.count[int]) -> None:
    """Four events for each response, as a real one has."""
    for n in ids:
        response_id, worker, now = f"resp_{n:040x}", f"scripted-{n % 8}@host", time.time()
        common = {"uuid": response_id, "pid": 1, "timestamp": now, "local_received": now, "utcoffset": 0}
        said = {"name": TASK, "args": "default, background, attempt 1", "kwargs": f"{{'project': 'team-{n % 50}'}}"}
        said |= {"root_id": response_id, "parent_id": None, "retries": 0}
        for kind, host, fields in (
            ("sent", "api@host", said),
            ("received", worker, said),
            ("started", worker, {}),
            ("succeeded", worker, {"result": "None", "runtime": 1.0}),
        ):
            state.event({**common, **fields, "type": f"task-{kind}", "hostname": host, "clock": next(clock)})


def test_flower_forgets_the_oldest_tasks_and_holds_no_more_of_them() -> None:
    state, clock = EventsState(max_tasks_in_memory=MOST), itertools.count(1)
    hear(state, range(4 * MOST), clock)
    tracemalloc.start()
    try:
        hear(state, range(4 * MOST, 8 * MOST), clock)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        hear(state, range(8 * MOST, 24 * MOST), clock)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    passed = 16 * MOST
    assert after - before < passed * (before / MOST) / 20, "not even a twentieth of what passed is held"
    assert len(state.tasks) == len(state.search_engine.documents) == MOST
