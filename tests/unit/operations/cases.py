"""Rows as the store reads them, for the pure parts of the operators' service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from app.scheduling.loads import Load
from app.store.layout import LAYOUT
from app.store.operations.known import KnownResponse
from app.store.operations.snapshot import Count, Snapshot, Worker

NOW = datetime(2026, 11, 27, tzinfo=UTC)
QUEUE = "model.m"
BACKGROUND, FOREGROUND = 6, 3


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def worker(name: str = "w1", *, taken: int = 8, **more: Any) -> Worker:
    """One to which `taken` background responses were sent, for dispatches."""
    fields: dict[str, Any] = {
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
        **dict.fromkeys(("unit", "devices", "device", "draining_since", "drain_reason")),
        **dict.fromkeys(("running", "sent", "in_tools"), 0),
        **more,
    }
    load = Load(name, fields["slots"], answers=taken, background=taken)
    return Worker(**fields, load=load if fields["slots"] and fields["draining_since"] is None else None)


def waiting(number: int = 5, project: str = "red", priority: int = BACKGROUND, seconds: float | None = 60.0) -> Count:
    return Count(QUEUE, project, None, priority, "waiting", number, oldest_seconds=seconds)


def begun(state: str, number: int = 1, *, in_line: int = 0, suspects: int = 0) -> Count:
    return Count(QUEUE, "red", None, BACKGROUND, state, number, in_line, suspects, 30.0)


def look(*workers: Worker, counts: Any = (), **more: Any) -> Snapshot:
    return Snapshot(workers, counts, **more)


def response(**more: Any) -> KnownResponse:
    """A queued background response of project `red`, which has waited for 90 s."""
    fields: dict[str, Any] = dict.fromkeys(KnownResponse.__dataclass_fields__)
    fields |= {"id": "resp_1", "project": "red", "model": "m", "queue": QUEUE, "priority": BACKGROUND}
    fields |= {"status": "queued", "background": True, "position": 7, "yielded": False, "layout": LAYOUT}
    fields |= dict.fromkeys(("attempt", "crashes", "yields", "sends", "before"), 0)
    fields |= {"inserted_at": ago(90), "read_at": NOW, "history": (), **more}
    return KnownResponse(**fields)


def running(**more: Any) -> KnownResponse:
    owned = {"status": "in_progress", "worker": "w1", "sent_to": "w1", "sent_at": ago(31), "started_at": ago(30)}
    return response(**{**owned, "attempt": 1, "sends": 1, **more})


def released(**more: Any) -> KnownResponse:
    return running(**{"worker": None, "sent_at": None, "sends": 0, **more})


def ended(status: str, **more: Any) -> KnownResponse:
    return running(**{"worker": None, "status": status, "finished_at": ago(10), "started_at": ago(100), **more})
