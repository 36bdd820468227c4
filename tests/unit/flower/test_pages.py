"""Flower's pages where ours differ."""

from __future__ import annotations

import time

from celery.events.state import Worker

from app.flower.handlers import LonghaulWorkers


def test_a_worker_that_is_offline_runs_nothing() -> None:
    living = Worker("w1", heartbeats=[time.time()], active=3)
    dead = Worker("w2", heartbeats=[1.0], active=3)
    assert [LonghaulWorkers._as_dict(each)["active"] for each in (living, dead)] == [3, 0]
