"""This worker's lease: the proof, renewed by heartbeats, that what the worker claimed is still its own.

It is kept in a thread of its own, with an event loop and connections of its own: however busy the worker's loop is, no
heartbeat is late. A loop that never comes back ends the process, so that other workers get its responses.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from app.aio import end_tasks
from app.store.database import Database, StoreUnavailable, retry_until_available
from app.store.guards import HandOver
from app.store.queue import workers as store
from app.store.queue.workers import LeaseLost, WorkerIdentity
from app.store.responses import claims
from config.logging.context import about
from config.models import ServedModel
from config.version import VERSION
from config.worker_readiness import WorkerReadiness
from workers import whereabouts
from workers.engine.base import Engine
from workers.generation.run import ActiveRuns
from workers.generation.slots import Slots

log = logging.getLogger("longhaul.lease")

RETRY_SECONDS = 1.0
ANSWER_SECONDS = 5.0
"""How long Postgres may take to answer: after a failover the old server's address may be silent, and a new connection
must find the new one before the lease ends."""
PRESENCE_SECONDS = 0.5
"""The interval of checks of the presence connection. Maintenance forgives one missed check."""
CONNECTIONS = 2
"""Number of connections: one holds the worker's lock, one sends the heartbeats."""
STALLED_LEASES = 4
"""If the worker's loop takes no turn for this many lengths of the lease, the process ends."""
CLOSE_SECONDS = 5.0
HUNG = 1
"""Exit code of a worker whose loop hangs; the supervisor starts another."""


def identity_of(model: ServedModel, engine: Engine, node: str, slots: int) -> WorkerIdentity:
    """The worker with its first lease. `model` is as its loaded engine knows it."""
    return WorkerIdentity(
        id=node,
        model=model.name,
        queue=model.queue,
        host=socket.gethostname(),
        pid=os.getpid(),
        context_length=engine.context_length,
        slots=slots,
        node=node,
        format=model.format,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
        default_sampling=model.default_sampling or {},
        efforts=model.efforts,
        refusals=model.refusals,
        device=engine.device,
        unit=whereabouts.unit(),
        devices=whereabouts.devices(),
        version=VERSION,
    )


def end_process(code: int) -> None:
    """Ends this process as a crash does: nothing is cleaned up, for whatever hangs might hang the clean-up."""
    os._exit(code)


class LoopWatch:
    """Whether the worker's loop still turns, as the thread of the lease sees it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._beats = 0
        self._seen = 0
        self.silence = 0.0
        """The seconds that the thread has slept without a beat of the loop, at the last `look`."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._beat(), name="loop-watch")

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    async def _beat(self) -> None:
        while True:
            self._beats += 1
            await asyncio.sleep(self._seconds)

    # In the thread

    def look(self, slept: float) -> None:
        """Looks at the loop after the thread has slept for `slept` seconds.

        The clock does not count: while the whole process was frozen, the thread did not sleep.
        """
        self.silence = self.silence + slept if self._beats == self._seen else 0.0
        self._seen = self._beats


class Lease:
    """Registers the worker and renews its lease; replaces a lease that ran out by one under a new worker id.

    Each heartbeat compares what runs here with what the worker owns. A run whose response belongs to another attempt
    is fenced now, not only at its next write. A response that is owned but does not run here is released.

    Each heartbeat tells Postgres what `slots` offers, and how many runs need no slot. It tells `slots` whether
    operators drain the worker.

    On the worker's loop, `on_end` is called if the lease cannot be kept any more, because of a bug; `on_more_slots`
    after Postgres has got more slots than before: what waits can be sent here.
    """

    def __init__(
        self,
        db: Database,
        identity: WorkerIdentity,
        seconds: float,
        runs: ActiveRuns,
        slots: Slots,
        readiness: WorkerReadiness,
        *,
        on_end: Callable[[], None],
        on_more_slots: Callable[[], None],
    ) -> None:
        self._db = db.sibling(CONNECTIONS)
        self._identity = identity
        self._leases = itertools.count(2)
        self._seconds = seconds
        self._runs = runs
        self._slots = slots
        self._readiness = readiness
        self._on_end = on_end
        self._on_more_slots = on_more_slots
        self._is_drained = False
        self._told_slots = 0
        """How many slots the last heartbeat told, those included that runs need not."""
        self._present = asyncio.Event()
        self._orphaned: Mapping[str, int] = {}
        """Responses (id -> attempt) that the last heartbeat found owned and not running."""
        self._watch = LoopWatch(min(RETRY_SECONDS, seconds / 10))
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        self._registered: Future[None] = Future()
        self._thread: threading.Thread | None = None

    @property
    def worker(self) -> str:
        """The worker id for new claims. A claim fails while it is not registered."""
        return self._identity.id

    # On the worker's loop

    async def start(self) -> None:
        """Returns once the worker is present and registered; waits for Postgres."""
        self._registered.set_running_or_notify_cancel()  # from here on, a cancelled `start` leaves it alone
        self._worker_loop = asyncio.get_running_loop()
        self._watch.start()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="longhaul-lease", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(self._registered)

    async def close(self) -> None:
        if self._thread is None:
            return
        with suppress(RuntimeError):  # the thread has ended by itself
            self._loop.call_soon_threadsafe(self._closing.set)
        await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)
        await self._watch.close()

    def renew_now(self) -> None:
        """Sends a heartbeat now: the slots have changed. From any thread, once the lease has started."""
        with suppress(RuntimeError):  # the thread has ended
            self._loop.call_soon_threadsafe(self._changed.set)

    # In the thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._keep())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except Exception:
            log.exception("the lease of %s did not end cleanly", self.worker)
        finally:
            self._loop.close()

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        """Calls `function` on the worker's loop, soon."""
        with suppress(RuntimeError):  # the loop was closed: the worker ends
            self._worker_loop.call_soon_threadsafe(function, *args)

    async def _keep(self) -> None:
        """Keeps the lease until `close`."""
        closing = asyncio.create_task(self._closing.wait(), name="closing")
        tasks = [
            asyncio.create_task(self._hold_presence(), name="presence"),
            asyncio.create_task(self._renew(), name="heartbeat"),
        ]
        try:
            await asyncio.wait([closing, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if not closing.done():
                self._report(next(task for task in tasks if task.done()))
                await closing  # the other task goes on meanwhile, so that this worker can release what it runs
        finally:
            self._readiness.hide()
            await end_tasks(closing, *tasks)
            await self._unregister()
            await self._db.close()

    def _report(self, ended: asyncio.Task[None]) -> None:
        """A task of the lease ended, which only a bug can cause: the worker must stop."""
        error = ended.exception()
        log.critical("a task of the lease ended: %s of %s", ended.get_name(), self.worker, exc_info=error)
        if self._registered.done():
            self._tell(self._on_end)
        else:
            self._registered.set_exception(error or RuntimeError("the lease ended"))

    async def _unregister(self) -> None:
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
                    if worker == self.worker:  # the lease may have been lost while the lock was taken
                        self._present.set()
                    while worker == self.worker:
                        await asyncio.sleep(PRESENCE_SECONDS)
                        async with asyncio.timeout(ANSWER_SECONDS):
                            await check()
            except (StoreUnavailable, TimeoutError):
                if absent:
                    await asyncio.sleep(PRESENCE_SECONDS)
                else:
                    log.info("the connection that proves this worker alive is lost; opening another")
                absent = True

    async def _renew(self) -> None:
        await self._register()
        self._show_ready()
        self._registered.set_result(None)
        while True:
            renewed = await self._heartbeat()
            pause = self._seconds / 3 if renewed else min(RETRY_SECONDS, self._seconds / 10)
            slept = await self._sleep(pause)
            self._end_if_hung(slept)

    async def _sleep(self, seconds: float) -> float:
        """Sleeps until `renew_now`; returns how long."""
        start = self._loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        return min(self._loop.time() - start, seconds)

    def _end_if_hung(self, slept: float) -> None:
        """Ends the process if the worker's loop has not turned for long: its responses must not wait for ever."""
        self._watch.look(slept)
        if self._watch.silence > STALLED_LEASES * self._seconds:
            log.critical("the event loop of %s hangs; the process ends", self.worker)
            end_process(HUNG)

    async def _heartbeat(self) -> bool:
        """False: Postgres did not answer."""
        claimed, running = self._runs.claimed_now(), dict(self._runs.attempts())
        slots, away = self._slots.offered, self._slots.away
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                result = await store.heartbeat(self._db, self.worker, self._seconds, running, slots, away)
                self._tell(self._runs.fence, result.fenced)
                self._note_drain(result.is_drained)
                if slots + sum(away) > self._told_slots:
                    self._tell(self._on_more_slots)
                self._told_slots = slots + sum(away)
        except LeaseLost:
            log.error("the lease of %s ran out; its %d responses go to other workers", self.worker, len(running))
            self._tell(self._runs.fence, running)
            self._identity = self._next_identity()
            self._present.clear()
            await self._register()
            self._tell(self._on_more_slots)
            self._show_ready()
            return True
        except (StoreUnavailable, TimeoutError):
            return False
        self._show_ready()
        with suppress(StoreUnavailable, TimeoutError):  # the next heartbeat finds them once more
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._release_orphaned({id_: n for id_, n in result.orphaned.items() if id_ not in claimed})
        return True

    def _next_identity(self) -> WorkerIdentity:
        """For another lease of this process. What is sent to it stays its own: its node is the same."""
        before = self._identity
        return replace(before, id=f"{before.node}#{next(self._leases)}", slots=self._slots.offered)

    def _note_drain(self, is_drained: bool) -> None:
        if is_drained is not self._is_drained:
            log.info("operators drain %s" if is_drained else "operators have given %s back", self._identity.node)
            self._is_drained = is_drained
            self._tell(self._slots.set_drained, is_drained)

    def _show_ready(self) -> None:
        """The lease is new. A worker whose loop does not turn is not ready all the same."""
        if not self._watch.silence:
            self._readiness.show(self._seconds)

    async def _release_orphaned(self, orphaned: Mapping[str, int]) -> None:
        """Releases only what the last heartbeat found orphaned, too: a claim may end, and its run begin, in this one.

        While the worker's loop is blocked, any number of heartbeats may fall between the two.
        """
        if self._watch.silence:
            orphaned = {}
        for response_id in orphaned.keys() & self._orphaned.keys():
            if orphaned[response_id] == self._orphaned[response_id]:
                with about(response_id, attempt=(attempt := orphaned[response_id])):
                    log.error("the response belongs to this worker and does not run here; releasing it")
                    await claims.release(self._db, response_id, attempt, self.worker, how=HandOver.ORPHANED)
        self._orphaned = orphaned

    async def _register(self) -> None:
        """Registers after the presence is proved: maintenance takes a registered worker without it for dead."""
        await self._present.wait()
        await retry_until_available(lambda: store.register(self._db, self._identity, self._seconds))
