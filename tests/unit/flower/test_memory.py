"""Flower's memory does not grow with what has passed: 110 MiB after 50,000 responses, and after 800,000."""

from __future__ import annotations

import itertools
import time
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


def test_flower_forgets_the_oldest_tasks_and_what_is_searched_of_them() -> None:
    state, clock = EventsState(max_tasks_in_memory=MOST), itertools.count(1)
    hear(state, range(4 * MOST), clock)
    assert len(state.tasks) == len(state.search_engine.documents) == MOST
