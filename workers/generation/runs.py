"""What runs in this worker now: the registry that runner and lease share, and the gate for suspected engine killers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import AbstractAsyncContextManager, contextmanager

from app.store.guards import is_suspect
from app.store.rows import ResponseRow
from workers.generation.run import Run


class ActiveRuns:
    """The runs of this worker, by response id. For the worker's loop; `attempts` also for the lease's thread."""

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
        """Around a claim: its row may name this worker before its run is registered."""
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


class SuspectGate:
    """Lets responses that fail at the next crash run one at a time.

    Several responses may have run when an engine died, and only one of them killed it. Alone, the killer takes no
    bystander with it. Few wait here: maintenance sends as many suspects as there are workers (`redelivery`).
    """

    def __init__(self, max_crashes: int) -> None:
        self._max_crashes = max_crashes
        self._lock = asyncio.Lock()

    def admit(self, row: ResponseRow) -> AbstractAsyncContextManager[None]:
        return self._lock if is_suspect(row.crashes, self._max_crashes) else contextlib.nullcontext()
