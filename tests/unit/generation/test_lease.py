"""The lease on a Postgres that the test plays: what its thread does while the worker's loop is blocked or broken."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from app.store.database import Database, StoreBusy, StoreUnavailable
from app.store.queue import workers as store
from app.store.queue.workers import HeartbeatResult, LeaseLost
from app.store.responses import claims
from config.worker_readiness import WorkerReadiness
from tests.support.scripted import ScriptedEngine
from tests.support.waiting import until
from tests.support.worker import lease_of, scripted_model
from workers.generation import lease as module
from workers.generation.lease import Lease
from workers.generation.run import ActiveRuns
from workers.generation.slots import Slots

SECONDS = 0.06
"""The length of the lease: a heartbeat every 20 ms."""
LIMIT = 30.0
NODE = "scripted-1f2e3d4c@host"


class Postgres:
    """Counts what the lease does. Called in the lease's thread."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self.nodes: list[str] = []
        """Nodes of the workers that registered."""
        self.slots: list[int] = []
        """What each heartbeat said."""
        self.unregistered: list[str] = []
        self.present = 0
        self.held: set[str] = set()
        self.unproved: list[str] = []
        """Workers that registered without their lock."""
        self.cut = self.locked = False
        """The connection of a presence breaks; the next lock is held by somebody else."""
        self.beats = 0
        self.released: list[str] = []
        self.owned: Mapping[str, int] = {}
        self.errors: list[Exception] = []
        self.is_drained = False

    def sibling(self, _: int) -> Postgres:
        return self

    async def close(self) -> None:
        pass

    async def register(self, _: object, worker: Any, __: float) -> None:
        self.registered.append(worker.id)
        self.nodes.append(worker.node)
        if worker.id not in self.held:
            self.unproved.append(worker.id)

    async def unregister(self, _: object, worker: str) -> None:
        self.unregistered.append(worker)

    async def heartbeat(
        self, _: object, worker: str, __: float, running: Mapping[str, int], slots: int, ___: tuple[int, int]
    ) -> HeartbeatResult:
        self.beats += 1
        self.slots.append(slots)
        if self.errors:
            raise self.errors.pop()
        return HeartbeatResult({}, self.owned, self.is_drained)

    async def release(self, _: object, response_id: str, *__: object, **___: object) -> None:
        self.released.append(response_id)

    @asynccontextmanager
    async def presence(self, _: object, worker: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        async def check() -> None:
            if self.cut:
                self.cut, self.locked = False, True
                raise StoreUnavailable("the connection broke")

        await until(lambda: not self.locked)
        self.present += 1
        self.held.add(worker)
        try:
            yield check
        finally:
            self.present -= 1
            self.held.remove(worker)


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Postgres:
    played = Postgres()
    for name in ("register", "unregister", "heartbeat", "presence"):
        monkeypatch.setattr(store, name, getattr(played, name))
    monkeypatch.setattr(claims, "release", played.release)
    monkeypatch.setattr(module, "PRESENCE_SECONDS", 0.005)
    monkeypatch.setattr(module, "STALLED_LEASES", 10_000)  # else a loop that is slow would end these tests' process
    return played


class Shown(WorkerReadiness):
    """Counts how often the worker said that it is ready."""

    times = 0
    is_hidden = False

    def show(self, seconds: float) -> None:
        assert seconds == SECONDS
        self.times += 1

    def hide(self) -> None:
        self.is_hidden = True


class PaperSlots:
    """Slots as far as a lease knows them."""

    def __init__(self) -> None:
        self.offered = 8
        self.away = (0, 0)
        self.drained: list[bool] = []

    def set_drained(self, is_drained: bool) -> None:
        self.drained.append(is_drained)


def paper_lease(postgres: Postgres, seconds: float, runs: ActiveRuns, slots: PaperSlots, **parts: Any) -> Lease:
    model, db = scripted_model(), cast(Database, postgres)
    return lease_of(ScriptedEngine(model), model, db, seconds, runs, cast(Slots, slots), NODE, **parts)


@asynccontextmanager
async def leased(
    postgres: Postgres,
    seconds: float = SECONDS,
    runs: ActiveRuns | None = None,
    slots: PaperSlots | None = None,
    **parts: Any,
) -> AsyncIterator[Lease]:
    lease = paper_lease(postgres, seconds, runs or ActiveRuns(), slots or PaperSlots(), **parts)
    try:
        await lease.start()
        yield lease
    finally:
        await lease.close()


def block_the_loop_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


async def test_a_blocked_loop_delays_no_heartbeat(postgres: Postgres) -> None:
    async with leased(postgres) as lease:
        before = postgres.beats
        block_the_loop_until(lambda: postgres.beats > before + 9)
        assert postgres.registered == [lease.worker]
    assert postgres.unregistered == postgres.registered
    assert postgres.present == 0


async def test_a_worker_is_ready_from_its_registration_on_and_with_each_heartbeat_unless_its_loop_hangs(
    postgres: Postgres,
) -> None:
    shown = Shown()
    async with leased(postgres, readiness=shown):
        assert shown.times >= 1
        await until(lambda: shown.times > 3)
        before = postgres.beats
        block_the_loop_until(lambda: postgres.beats > before + 3)
        times, before = shown.times, postgres.beats
        block_the_loop_until(lambda: postgres.beats > before + 3)
        assert shown.times == times
        await until(lambda: shown.times > times)
        assert not shown.is_hidden
    assert shown.is_hidden


async def test_a_worker_without_postgres_is_not_ready_for_longer_than_its_lease(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> HeartbeatResult:
        postgres.beats += 1
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "heartbeat", away)
    shown = Shown()
    async with leased(postgres, readiness=shown):
        await until(lambda: postgres.beats > 3)
        assert shown.times == 1


async def test_a_loop_that_never_comes_back_ends_the_process(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(module, "end_process", ended.append)
    monkeypatch.setattr(module, "STALLED_LEASES", 4)
    async with leased(postgres):
        block_the_loop_until(lambda: ended)
    assert ended[0] == module.HUNG


async def test_a_heartbeat_that_postgres_cancels_is_sent_again(postgres: Postgres) -> None:
    async with leased(postgres) as lease:
        postgres.errors += [StoreBusy("QueryCanceledError")] * 2
        before = postgres.beats
        await until(lambda: postgres.beats > before + 4)
        assert postgres.registered == [lease.worker]


async def test_a_bug_in_the_heartbeat_stops_the_worker_and_the_lock_is_held_meanwhile(postgres: Postgres) -> None:
    stopped = asyncio.Event()
    async with leased(postgres, on_end=stopped.set):
        postgres.errors.append(ValueError("a bug"))
        await stopped.wait()
        assert postgres.present == 1
        assert postgres.unregistered == []


async def test_a_start_that_fails_or_is_cancelled_leaves_no_thread(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    registering = threading.Event()

    async def refuse(*_: object) -> None:
        raise ValueError("a bug")

    async def hang(*_: object) -> None:
        registering.set()
        await asyncio.Event().wait()

    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "longhaul-lease"]

    monkeypatch.setattr(store, "register", refuse)
    with pytest.raises(ValueError, match="a bug"):
        async with leased(postgres):
            pass
    assert threads() == []
    monkeypatch.setattr(store, "register", hang)
    lease = paper_lease(postgres, SECONDS, ActiveRuns(), PaperSlots())
    starting = asyncio.create_task(lease.start())
    await until(registering.is_set)
    starting.cancel()
    await asyncio.wait([starting])
    await lease.close()
    assert threads() == []


async def test_a_lost_lease_is_replaced_by_one_under_a_new_id_of_the_same_node(postgres: Postgres) -> None:
    async with leased(postgres) as lease:
        first = lease.worker
        postgres.errors.append(LeaseLost("gone"))
        await until(lambda: len(postgres.registered) == 2)
        assert postgres.registered == [first, lease.worker] == [NODE, f"{NODE}#2"]
        assert postgres.nodes == [NODE] * 2


async def test_a_change_of_the_slots_is_told_at_once_and_not_only_at_the_next_heartbeat(postgres: Postgres) -> None:
    slots = PaperSlots()
    async with leased(postgres, 3600.0, slots=slots) as lease:
        await until(lambda: postgres.slots == [8])
        slots.offered = 0
        lease.renew_now()
        await until(lambda: postgres.slots == [8, 0])
        await until(lambda: not lease._changed.is_set())
        slots.offered = 8
        lease.renew_now()
        await until(lambda: postgres.slots == [8, 0, 8])
    lease.renew_now()  # as a part of a worker does that ends after its lease


async def test_what_waits_is_dispatched_once_postgres_knows_of_more_slots(postgres: Postgres) -> None:
    slots = PaperSlots()
    slots.offered = 0
    known: list[int] = []

    async def tell(count: int) -> None:
        slots.offered, before = count, len(postgres.slots)
        await until(lambda: not lease._changed.is_set())
        lease.renew_now()
        await until(lambda: len(postgres.slots) > before)

    def note() -> None:
        known.append(postgres.slots[-1])

    async with leased(postgres, 3600.0, slots=slots, on_more_slots=note) as lease:
        await until(lambda: postgres.slots == [0])
        await tell(8)
        await until(lambda: known == [8])
        for count in (8, 4, 6):
            await tell(count)
        await until(lambda: known == [8, 6])
        postgres.errors.append(LeaseLost("gone"))
        await tell(6)
        await until(lambda: known == [8, 6, 6])


async def test_the_worker_is_told_once_that_operators_drain_it_and_once_that_they_have_given_it_back(
    postgres: Postgres,
) -> None:
    slots = PaperSlots()
    async with leased(postgres, slots=slots):
        for is_drained in (True, False):
            postgres.is_drained, before = is_drained, postgres.beats
            await until(lambda before=before: postgres.beats > before + 3)
        assert slots.drained == [True, False]


async def test_a_new_identity_registers_only_under_its_own_lock(postgres: Postgres) -> None:
    """The lease is lost while the lock of the old identity is being taken again."""
    async with leased(postgres) as lease:
        first = lease.worker
        postgres.cut = True
        await until(lambda: postgres.locked)
        postgres.errors.append(LeaseLost("gone"))
        await until(lambda: lease.worker != first)
        postgres.locked = False
        await until(lambda: len(postgres.registered) == 2)
    assert postgres.unproved == []


async def test_a_claim_that_takes_many_heartbeats_orphans_no_response(postgres: Postgres) -> None:
    runs = ActiveRuns()
    async with leased(postgres, runs=runs):
        with runs.claiming("resp_1"):
            postgres.owned = {"resp_1": 1}
            before = postgres.beats
            await until(lambda: postgres.beats > before + 4)
            assert postgres.released == []
        await until(lambda: postgres.released)


async def test_a_release_that_hangs_does_not_undo_its_heartbeat(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    releasing = threading.Event()

    async def hang(*_: object, **__: object) -> None:
        releasing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(claims, "release", hang)
    shown = Shown()
    postgres.owned = {"resp_1": 1}
    async with leased(postgres, readiness=shown):
        await until(releasing.is_set)
        assert shown.times == 1 + postgres.beats


async def test_a_blocked_loop_orphans_no_response(postgres: Postgres) -> None:
    """The loop may have claimed it just before it was blocked; once the loop turns, it is an orphan."""
    async with leased(postgres):
        await until(lambda: postgres.beats > 1)
        postgres.owned = {"resp_1": 1}
        before = postgres.beats
        block_the_loop_until(lambda: postgres.beats > before + 6)
        assert postgres.released == []
        await until(lambda: postgres.released)
