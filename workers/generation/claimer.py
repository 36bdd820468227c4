"""Claiming: all responses that ask meanwhile are claimed in one statement, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from app.aio import run_to_completion
from app.batching import Batcher
from app.metrics.instruments import WorkerMetrics
from app.protocol.status import Status
from app.store.database import RETRY_SECONDS, Database, StoreUnavailable, retry_until_available
from app.store.queue import workers
from app.store.responses import claims, lookup
from app.store.rows import ResponseRow
from workers.generation.outcome import Outcome
from workers.generation.run import ActiveRuns

MAX_BATCH = 64
"""Claims of one statement. Their requests come back with them, each up to `LARGE_BYTES` (sizes.py)."""


class Claimer:
    """Claims responses for a worker: `worker` says its id now."""

    def __init__(self, db: Database, runs: ActiveRuns, worker: Callable[[], str], metrics: WorkerMetrics) -> None:
        self._db = db
        self._runs = runs
        self._worker = worker
        self._batcher = Batcher(
            partial(claims.claim_all, db, metrics=metrics), max_items=MAX_BATCH, shared_errors=(StoreUnavailable,)
        )

    async def claim(self, response_id: str) -> ResponseRow | None:
        """The row, claimed; None if it cannot be claimed, or runs here already.

        Waits for Postgres, and while this worker's lease has run out, until it is registered again. A claim runs to
        its end even if the caller is cancelled: a row claimed by a job that is gone would wait for this worker's death.
        """
        with self._runs.claiming(response_id):
            while True:
                worker = self._worker()
                row = await run_to_completion(self._claim(response_id, worker))
                if row is not None:
                    return None if self._runs.has(row) else row
                if await retry_until_available(partial(workers.is_alive, self._db, worker)):
                    return None
                await asyncio.sleep(RETRY_SECONDS)

    async def why_not(self, response_id: str) -> tuple[Outcome, ResponseRow | None]:
        """The outcome of a response that could not be claimed, and its row."""
        row = await retry_until_available(lambda: lookup.find(self._db, response_id))
        is_cancelled = row is not None and row.status is Status.CANCELLED
        return Outcome.CANCELLED if is_cancelled else Outcome.NOT_CLAIMED, row

    async def _claim(self, response_id: str, worker: str) -> ResponseRow | None:
        """If Postgres went away, the claim may have been made: then the row names this worker, and is returned.

        A large row is claimed with others, and then read alone.
        """
        is_first = True

        async def submit() -> ResponseRow | None:
            nonlocal is_first
            is_unsure, is_first = not is_first, False
            row = await self._batcher.submit((response_id, worker))
            if isinstance(row, ResponseRow) or (row is None and not is_unsure):
                return row
            found = await lookup.find(self._db, response_id)
            return found if found is not None and found.worker == worker else None

        return await retry_until_available(submit)
