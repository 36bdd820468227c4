from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery.worker import state as worker_state

from tests.support.pool import start_pool
from workers.celery_host import jobs, pool
from workers.celery_host.pool import TaskPool


@pytest.fixture
def task_pool() -> Iterator[TaskPool]:
    pool = start_pool()
    yield pool
    pool.terminate()


@pytest.fixture
def revoked() -> Iterator[Any]:
    """Celery's set of revoked ids, which says why a job is terminated."""
    yield worker_state.revoked
    worker_state.revoked.clear()


@pytest.fixture
def quick_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CLEANUP_SECONDS", 0.1)
    monkeypatch.setattr(pool, "CLEANUP_SECONDS", 0.1)
