from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.celery_bench import Bench
from tests.support.celery_processes import Worker, own_database


@pytest.fixture
def bench(redis_url: str, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(own_database(redis_url), tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def start(bench: Bench) -> Iterator[Any]:
    """Starts workers; `own@test` is the name of the first."""
    workers: list[Worker] = []

    def start(name: str = "own", **options: Any) -> Worker:
        workers.append(Worker(bench.url, bench.folder, name, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture
def worker(start: Any) -> Worker:
    """A worker of its own for each test: it remembers what was revoked."""
    worker: Worker = start().ready()
    return worker
