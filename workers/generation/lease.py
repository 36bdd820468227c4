"""This worker's lease: the proof, renewed by heartbeats, that what the worker claimed is still its own."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Mapping
from functools import partial

from app.aio import end_tasks
from app.store import claims
from app.store import workers as store
from app.store.database import Database, StoreUnavailable, retry_until_available
from app.store.workers import LeaseLost, WorkerIdentity
from config.models import ServedModel
from workers.generation.runs import ActiveRuns

log = logging.getLogger("longhaul.lease")

RETRY_SECONDS = 1.0
PRESENCE_SECONDS = 0.5
"""The interval of checks of the presence connection. Maintenance forgives one missed check."""


def new_identity(model: ServedModel, context_length: int | None) -> WorkerIdentity:
    """A new worker id for this process."""
    host, pid = socket.gethostname(), os.getpid()
    worker_id = f"{host}-{pid}-{uuid.uuid4().hex[:8]}"
    return WorkerIdentity(worker_id, model.name, model.queue, host, pid, context_length)


class Lease:
    """Registers the worker and renews its lease; replaces a lease that ran out by one under a new worker id.

    Each heartbeat compares what runs here with what the worker owns. A run whose response belongs to another attempt
    is fenced now, not only at its next write. A response that is owned but does not run here is released.
    """

    def __init__(
        self, db: Database, model: ServedModel, seconds: float, runs: ActiveRuns, context_length: int | None = None
    ) -> None:
        self._db = db
        self._new_identity = partial(new_identity, model, context_length)
        self._seconds = seconds
        self._runs = runs
        self._identity = self._new_identity()
        self._present = asyncio.Event()
        self._orphaned: Mapping[str, int] = {}
        """Responses (id -> attempt) that the last heartbeat found owned and not running."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def worker(self) -> str:
        """The worker id for new claims."""
        return self._identity.id

    async def start(self) -> None:
        """Returns once the worker is present and registered; waits for Postgres."""
        self._tasks = [asyncio.create_task(self._hold_presence(), name="presence")]
        await self._register()
        self._tasks.append(asyncio.create_task(self._renew(), name="heartbeat"))

    async def close(self) -> None:
        await end_tasks(*self._tasks)
        try:
            await store.unregister(self._db, self.worker)
        except StoreUnavailable:
            log.warning("Postgres is away: the lease of %s will run out by itself", self.worker)

    async def _hold_presence(self) -> None:
        """Holds the advisory lock of the current worker id; takes it once more if its connection breaks."""
        absent = False
        while True:
            try:
                worker = self.worker
                async with store.presence(self._db, worker) as check:
                    absent = False
                    self._present.set()
                    while worker == self.worker:
                        await asyncio.sleep(PRESENCE_SECONDS)
                        await check()
            except StoreUnavailable:
                if not absent:
                    log.info("the connection that proves this worker alive is lost; opening another")
                absent = True
            await asyncio.sleep(PRESENCE_SECONDS)

    async def _renew(self) -> None:
        while True:
            renewed = await self._heartbeat()
            await asyncio.sleep(self._seconds / 3 if renewed else min(RETRY_SECONDS, self._seconds / 10))

    async def _heartbeat(self) -> bool:
        """False: Postgres did not answer."""
        running = dict(self._runs.attempts())
        try:
            result = await store.heartbeat(self._db, self.worker, self._seconds, running)
            self._runs.fence(result.fenced)
            await self._release_orphaned(result.orphaned)
        except LeaseLost:
            log.warning("the lease of %s ran out; its %d responses go to other workers", self.worker, len(running))
            self._runs.fence(running)
            self._identity = self._new_identity()
            self._present.clear()
            await self._register()
        except StoreUnavailable:
            return False
        return True

    async def _release_orphaned(self, orphaned: Mapping[str, int]) -> None:
        """Releases what was orphaned at the last heartbeat, too: one heartbeat may fall between a claim and its run."""
        for response_id in orphaned.keys() & self._orphaned.keys():
            if orphaned[response_id] == self._orphaned[response_id]:
                log.error("%s belongs to this worker and does not run here; releasing it", response_id)
                await claims.release(self._db, response_id, orphaned[response_id], self.worker)
        self._orphaned = orphaned

    async def _register(self) -> None:
        """Registers after the presence is proved: maintenance takes a registered worker without it for dead."""
        await self._present.wait()
        await retry_until_available(lambda: store.register(self._db, self._identity, self._seconds))
