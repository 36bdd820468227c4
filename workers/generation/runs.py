"""The runs in this worker now: the registry that runner and lease share."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager

from app.store.rows import ResponseRow
from workers.generation.run import Run


class ActiveRuns:
    """The runs of this worker, by response id. For the worker's loop; `attempts` and `claimed_now` also for the
    lease's thread."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._claims: Counter[str] = Counter()
        """Ids whose claim is under way, with the number of messages that ask for it."""
        self._lock = threading.Lock()

    def attempts(self) -> Mapping[str, int]:
        """Response id -> attempt. From any thread."""
        with self._lock:
            runs = self._runs.copy()
        return {response_id: run.row.attempt for response_id, run in runs.items()}

    def claimed_now(self) -> Set[str]:
        """The ids whose claim is under way: their rows may name this worker before their runs are here. Thread-safe."""
        with self._lock:
            return {*self._claims}

    @contextmanager
    def claiming(self, response_id: str) -> Iterator[None]:
        """Marks a claim in its block: its row may name this worker before its run is registered."""
        with self._lock:
            self._claims[response_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._claims[response_id] -= 1
                if not self._claims[response_id]:
                    del self._claims[response_id]

    def has(self, row: ResponseRow) -> bool:
        """Whether this attempt runs here already."""
        run = self._runs.get(row.id)
        return run is not None and run.row.attempt == row.attempt

    def fence(self, attempts: Mapping[str, int]) -> None:
        """Stops the runs of these responses (id -> attempt), which belong to this worker no longer."""
        for response_id, attempt in attempts.items():
            run = self._runs.get(response_id)
            if run is not None and run.row.attempt <= attempt:  # a later attempt may run here by now
                run.fence()

    @contextmanager
    def registered(self, run: Run) -> Iterator[None]:
        """Registers the run for the length of the block."""
        if (earlier := self._runs.get(run.row.id)) is not None:
            earlier.fence()  # this worker was taken for dead, and has claimed the response a second time
        with self._lock:
            self._runs[run.row.id] = run
        try:
            yield
        finally:
            with self._lock:
                if self._runs.get(run.row.id) is run:
                    del self._runs[run.row.id]
