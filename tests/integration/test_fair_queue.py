"""The queue on real Postgres and Valkey, worked off by slots without an engine: who starts when, what Redis holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import redis.asyncio

from app.aio import BackgroundTasks
from app.dispatcher import Dispatcher
from app.maintenance.loop import Maintenance
from app.queue.message import Kind, Priority, worker_list
from app.queue.publisher import TaskQueue
from app.responses.create.creator import ResponseCreator
from app.store.database import Database
from app.store.responses.inserts import Inserter
from app.store.roles.rights import MAINTENANCE
from app.streaming.pubsub import PubSub
from config.settings import Settings, load_settings
from tests.support.maintenance import maintenance_of
from tests.support.roles import as_role
from tests.support.rows import new_response
from tests.support.slot_worker import SlotWorker, late, slot_worker
from tests.support.waiting import until
from tests.support.waiting_rows import QUEUE, take, waiting, weigh, with_slots

SLOTS = 4


@pytest.fixture
async def broker(services: Any) -> AsyncIterator[str]:
    """An empty Redis."""
    async with redis.asyncio.from_url(services.redis_url) as client:
        await client.flushdb()
    yield services.redis_url


@pytest.fixture
async def maintenance(db: Database, pubsub: PubSub, broker: str) -> AsyncIterator[Maintenance]:
    settings: Settings = load_settings(REDIS_URL=broker)
    queue = TaskQueue(settings)
    made = maintenance_of(settings, as_role(db, MAINTENANCE), pubsub, queue, round_seconds=0.05)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.wait([running])
    await queue.close()


def count(worker: SlotWorker) -> Counter[str]:
    return Counter(row.project for row in worker.claimed)


async def test_one_request_passes_the_long_queue_of_another_project_but_for_what_was_sent(
    db: Database, broker: str, maintenance: Maintenance
) -> None:
    await waiting(db, "a", 300)
    async with slot_worker(db, broker, SLOTS) as worker:
        for number in range(3):
            await until(lambda number=number: len(worker.claimed) > 40 * number, what="the queue moves")
            worker.turn.clear()
            await until(lambda: worker.is_full, what="the slots are full")
            begun, single = len(worker.claimed), new_response(project="b")
            assert await Inserter(db).create(single) is None
            worker.turn.set()
            await until(lambda single=single: single.id in {row.id for row in worker.claimed}, what="its claim")
            passed = [row.id for row in worker.claimed[begun:]].index(single.id)
            assert passed <= 2 * SLOTS, "a turn of the slots, after what was sent ahead of them: as many at most"
        assert worker.most_in_redis <= 2 * SLOTS, "those ahead of the slots are as many at most"


@pytest.mark.long
async def test_projects_get_tokens_by_their_weights_although_their_estimates_are_wrong(
    db: Database, broker: str, maintenance: Maintenance
) -> None:
    """Each response of `a` takes four times its estimate, and each of `b` half of it."""
    await weigh(db, "a", 3.0)
    await waiting(db, "a", 300)
    await waiting(db, "b", 450)
    async with slot_worker(db, broker, SLOTS) as worker:
        worker.tokens = {"a": 400, "b": 50}
        await until(lambda: len(worker.claimed) >= 400, what="400 claims")
        taken = count(worker)
    assert 400 * taken["a"] / (50 * taken["b"]) == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("slots", [1, 32])
async def test_each_end_brings_the_next_responses_so_a_queue_ends_without_maintenance(
    db: Database, broker: str, slots: int
) -> None:
    """If the chain of ends and dispatches broke once, slots would be empty while the rest waits for maintenance."""
    await waiting(db, "a", 75)
    await waiting(db, "b", 25)
    async with slot_worker(db, broker, slots) as worker:
        worker.dispatcher.nudge(QUEUE)
        await until(lambda: len(worker.claimed) == 100, what="all claims")


@pytest.mark.long
async def test_redis_is_emptied_in_the_middle_of_a_queue_and_every_response_runs_once_in_order(
    db: Database, broker: str, maintenance: Maintenance
) -> None:
    """In order, but for what Redis has when it is emptied: that waits again, and others go on meanwhile."""
    ids, flushes = await waiting(db, "a", 200), (30, 80, 130)
    async with slot_worker(db, broker, SLOTS) as worker:
        for claimed in flushes:
            await until(lambda claimed=claimed: len(worker.claimed) > claimed, what=f"{claimed} claims")
            await worker.redis.flushdb()
        await until(lambda: len(worker.claimed) == 200, what="all claims")
    order = [ids.index(row.id) for row in worker.claimed]
    assert sorted(order) == list(range(200))
    assert late(order, 2 * SLOTS) <= 2 * SLOTS * len(flushes)


async def test_a_queue_whose_dispatches_are_all_lost_goes_on_by_maintenance_alone(
    db: Database, broker: str, maintenance: Maintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await waiting(db, "a", 40)
    async with slot_worker(db, broker, SLOTS) as worker:
        monkeypatch.setattr(worker.dispatcher, "nudge", lambda _: None)
        await until(lambda: len(worker.claimed) == 40, what="all claims")
    assert [row.id for row in worker.claimed] == ids


async def test_a_foreground_response_beyond_the_kept_places_is_dispatched_by_its_api_process(
    db: Database, broker: str
) -> None:
    """No worker claims anything here, and no maintenance runs."""
    queue = TaskQueue(load_settings(REDIS_URL=broker))
    creator = ResponseCreator(db, queue, Dispatcher(db, queue), BackgroundTasks(), lambda _: None)
    await with_slots(db, SLOTS)
    await take(db, await waiting(db, "a", SLOTS))
    own = f"{worker_list(QUEUE, 'w')}{Kind.FOREGROUND}"
    async with redis.asyncio.from_url(broker) as client:
        for sent in (1, 2):
            assert await creator.insert(replace(new_response(project="b"), priority=Priority.FOREGROUND)) is None
            await until(lambda n=sent: _has(client, own, n), what=f"message {sent}")
    await creator.close()
    await queue.close()


async def _has(client: Any, name: str, messages: int) -> bool:
    return bool(await client.llen(name) == messages)
