"""This worker's lease: proof, renewed by a heartbeat, that what it claimed is still its own."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping

from app.aio import end_tasks
from app.store import responses
from app.store import workers as store
from app.store.database import Database, StoreUnavailable
from app.store.workers import LeaseLost, WorkerIdentity
from config.models import ServedModel

log = logging.getLogger("longhaul.lease")

RETRY_SECONDS = 1.0
PRESENCE_SECONDS = 0.5
"""How soon a lost connection is noticed; maintenance forgives an absence of one look."""


def new_identity(model: ServedModel) -> WorkerIdentity:
    """A name for one life of this process."""
    host = socket.gethostname()
    return WorkerIdentity(f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}", model.name, model.queue, host, os.getpid())


class Lease:
    """Registers the worker and keeps its lease. A lease that was lost is replaced by a new one.

    `running()` gives the responses that run here (id -> attempt); `lost` is called with those that are
    this worker's no more. The fence would stop them at their next write; this stops them before.
    """

    def __init__(
        self,
        db: Database,
        model: ServedModel,
        seconds: float,
        running: Callable[[], Mapping[str, int]],
        lost: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._db = db
        self._model = model
        self._seconds = seconds
        self._running = running
        self._lost = lost
        self._identity = new_identity(model)
        self._present = asyncio.Event()
        self._astray: Mapping[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def worker(self) -> str:
        """The id that claims made now are made under."""
        return self._identity.id

    async def start(self) -> None:
        """Returns once the worker is present and registered; waits for Postgres."""
        self._tasks = [asyncio.create_task(self._be_present(), name="presence")]
        await self._register()
        self._tasks.append(asyncio.create_task(self._beat(), name="heartbeat"))

    async def close(self) -> None:
        await end_tasks(*self._tasks)
        try:
            await store.unregister(self._db, self.worker)
        except StoreUnavailable:
            log.warning("Postgres is away: the lease of %s will run out by itself", self.worker)

    async def _be_present(self) -> None:
        """Holds the advisory lock of the present identity; takes it again where its connection is lost."""
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
                    log.info("lost the connection that proves this worker alive; taking another")
                absent = True
            await asyncio.sleep(PRESENCE_SECONDS)

    async def _beat(self) -> None:
        while True:
            prolonged = await self._prolonged()
            await asyncio.sleep(self._seconds / 3 if prolonged else min(RETRY_SECONDS, self._seconds / 10))

    async def _prolonged(self) -> bool:
        """False: Postgres did not answer; try again soon."""
        running = dict(self._running())
        try:
            beat = await store.heartbeat(self._db, self.worker, self._seconds, running)
            self._lost(beat.lost)
            await self._give_back(beat.orphaned)
        except LeaseLost:
            log.warning("the lease of %s ran out; %d responses are others' now", self.worker, len(running))
            self._lost(running)
            self._identity = new_identity(self._model)
            self._present.clear()
            await self._register()
        except StoreUnavailable:
            return False
        return True

    async def _give_back(self, orphaned: Mapping[str, int]) -> None:
        """Releases what was astray at the last beat as well: one beat may come between a claim and its run."""
        for response_id in orphaned.keys() & self._astray.keys():
            if orphaned[response_id] == self._astray[response_id]:
                log.error("%s is ours and does not run here; another worker shall", response_id)
                await responses.release(self._db, response_id, orphaned[response_id], self.worker)
        self._astray = orphaned

    async def _register(self) -> None:
        """Present first: a registered worker that is not would be taken for dead."""
        while True:
            await self._present.wait()
            try:
                return await store.register(self._db, self._identity, self._seconds)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
