"""Rows as the store reads them, for the pure parts of the operators' service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from app.scheduling.decisions import QueueState
from app.scheduling.line import Place
from app.scheduling.loads import Load
from app.scheduling.order import Flow
from app.store.layout import LAYOUT
from app.store.queue.pace import Pace
from app.store.queue.pauses import PauseRow
from app.store.queue.response_facts import ResponseFacts, Surroundings
from app.store.queue.worker_rows import WorkerRow

NOW = datetime(2026, 11, 27, tzinfo=UTC)
QUEUE = "model.m"
BACKGROUND, FOREGROUND = 6, 3


def worker(name: str = "w1", **more: Any) -> WorkerRow:
    fields: dict[str, Any] = {
        **dict.fromkeys(WorkerRow.__dataclass_fields__),
        **dict.fromkeys(("running", "sent", "in_tools"), 0),
        "id": name,
        "name": name,
        "model": "m",
        "queue": QUEUE,
        "host": "gpu-1",
        "pid": 17,
        "started_at": NOW,
        "lease_seconds": 20.0,
        "is_absent": False,
        "layout": LAYOUT,
        "slots": 8,
        "version": "",
    }
    return WorkerRow(**{**fields, **more})


def response(**more: Any) -> ResponseFacts:
    """A queued background response of project `red`, which has waited for 90 s."""
    fields: dict[str, Any] = {
        **dict.fromkeys(ResponseFacts.__dataclass_fields__),
        **dict.fromkeys(("attempt", "crashes", "yields", "sends"), 0),
        "id": "resp_1",
        "project": "red",
        "project_name": "Red",
        "model": "m",
        "queue": QUEUE,
        "priority": BACKGROUND,
        "status": "queued",
        "background": True,
        "position": 7,
        "rank": 7,
        "yielded": False,
        "layout": LAYOUT,
        "inserted_at": NOW,
        "inserted_seconds": 90.0,
    }
    return ResponseFacts(**{**fields, **more})


def running(**more: Any) -> ResponseFacts:
    owned = {"status": "in_progress", "worker": "w1", "sent_to": "w1", "sent_seconds": 31.0, "started_seconds": 30.0}
    return response(**{**owned, "attempt": 1, "sends": 1, **more})


def released(**more: Any) -> ResponseFacts:
    return running(**{"worker": None, "sent_seconds": None, "sends": 0, **more})


def ended(status: str, **more: Any) -> ResponseFacts:
    return running(**{"worker": None, "status": status, "finished_seconds": 10.0, "started_seconds": 100.0, **more})


def around(
    *workers: WorkerRow,
    ahead: dict[tuple[str, int], int] | None = None,
    taken: int = 8,
    ended_per_second: float = 0.0,
    is_exact: bool = True,
    in_files: int = 0,
    open_calls: Sequence[str] = (),
    pauses: Sequence[PauseRow] = (),
) -> Surroundings:
    """What a response stands among: workers of which each has `taken` responses, and those `ahead` by flow."""
    loads = [Load(each.name, each.slots, answers=taken, background=taken) for each in workers if each.slots]
    place = Place({Flow(*flow): number for flow, number in (ahead or {}).items()}, is_exact, in_files)
    paces = [Pace(QUEUE, "w1", round(ended_per_second * 300), 0.0, 300.0)] if ended_per_second else []
    return Surroundings(workers, QueueState(loads, True, False), paces, place, pauses, open_calls)
