"""Single stories that the issue tells, on real processes: what must be seen, not only not go wrong."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import httpx

from app.protocol.status import Status
from app.queue.celery_app import make_celery
from app.store import responses
from app.store.database import StoreUnavailable
from app.store.rows import ResponseRow
from config.settings import load_settings
from tests.faults import audit, checker
from tests.faults.arena import Arena
from tests.faults.clients import text_of
from tests.faults.evidence import Evidence, gather, settled
from tests.faults.fleet import Fleet, running
from tests.faults.kinds import KINDS
from tests.faults.member import Member, Role
from tests.faults.plan import Plan
from tests.faults.questions import counting
from tests.faults.seldom import seldom
from tests.faults.streams import Streams
from tests.support.waiting import until

SECONDS = 90.0
UNLIMITED = httpx.Limits(max_connections=None)
SMALL = Plan(apis=1, workers=2, maintenances=1, flower=False)


async def test_two_hundred_streams_outlive_the_loss_of_each_service_and_a_restart_of_all_workers() -> None:
    plan = Plan(maintenances=1, flower=False, concurrency=100, tokens_per_second=20.0, tokens_per_delta=10)
    async with (
        running(plan) as fleet,
        httpx.AsyncClient(timeout=10, limits=UNLIMITED, verify=False) as http,
        Streams(http, fleet.urls, Random(7), 200, numbers=150) as streams,
    ):
        arena = Arena(fleet, Random(7), {})
        await streams.begin("one of many")
        for kind in (
            "valkey: FLUSHALL",
            "valkey: killed, started empty",
            "postgres: restarted",
            "workers: restarted in turn",
        ):
            await until(fleet.busiest, SECONDS, f"something is left to do before {kind}")
            await KINDS[kind][1](arena)
        await streams.end()
        assert all(seen.terminal for seen in streams.seen.values())
        evidence = Evidence(streams.stories, unsettled=await settled(fleet, SECONDS))
        await gather(fleet, evidence)
    assert checker.check(evidence) == []
    assert all(row.crashes == 0 for row in evidence.rows.values())
    assert any(row.attempt > 1 for row in evidence.rows.values())


async def test_a_zombie_writes_nothing_and_frees_its_engine() -> None:
    async with running(SMALL) as fleet:
        ids = [await background(fleet, "/count 600") for _ in range(6)]
        zombie, owned = await until(fleet.busiest, SECONDS, "a worker is at work")
        pid = zombie.signal(signal.SIGSTOP)
        await until(seldom(lambda: taken(fleet, owned)), SECONDS, "the other has all of it")
        zombie.signal(signal.SIGCONT)
        await until(seldom(lambda: has_forgotten(fleet, zombie)), SECONDS, "its pool is empty")
        rows = await ended(fleet, ids)
        assert zombie.pid == pid
        assert [wrong for row in rows for wrong in audit.wrong((await audit.lives(fleet.db, [row.id]))[row.id])] == []
        writes = await audit.writes(fleet.db, ids)
        assert [write.wrong for each in writes.values() for write in each if write.wrong is not None] == []
        assert all(said(row) == counting(600).answer for row in rows)


async def test_a_response_that_kills_engines_is_failed_and_takes_no_other_with_it() -> None:
    async with running(Plan(apis=1, workers=2, maintenances=1, flower=False, max_crashes=3)) as fleet:
        ids = [await background(fleet, "/count 300") for _ in range(8)]
        await until(fleet.busiest, SECONDS, "a worker is at work")
        [pill] = await ended(fleet, [await background(fleet, "/die 20")])
        assert pill.status is Status.FAILED
        assert pill.error == {"code": "server_error", "message": "the engine died 3 times while it ran"}
        assert sum(member.starts for member in fleet.of(Role.WORKER)) >= 2 + 3 - 1  # the last one is on its way
        rows = await ended(fleet, ids)
        assert [row.status for row in rows] == [Status.COMPLETED] * len(ids), [row.error for row in rows]
        assert all(said(row) == counting(300).answer for row in rows)


async def test_a_restored_backup_goes_on_from_where_it_was() -> None:
    """docs/reliability.md: a copy of Postgres is the whole backup, and what was in progress is taken over."""
    async with running(SMALL) as fleet:
        ids = [await background(fleet, "/count 400") for _ in range(6)]
        await until(fleet.busiest, SECONDS, "a worker is at work")
        await copied(fleet, "backup", to_backup=True)
        later = await background(fleet, "/count 3")
        await ended(fleet, [*ids, later])
        await asyncio.gather(*(member.close() for member in fleet.members))
        await copied(fleet, "backup", to_backup=False)
        await asyncio.to_thread(fleet.services.empty_valkey)
        assert not any(row.status.final for row in await found(fleet, ids)), "the backup is older than that"
        for member in fleet.members:
            member.start()
        rows = await ended(fleet, ids)
        assert all(said(row) == counting(400).answer for row in rows)
        assert all(row.attempt > 1 for row in rows if row.started_at)
        assert await found(fleet, [later]) == []


async def copied(fleet: Fleet, name: str, *, to_backup: bool) -> None:
    """Stops Postgres, copies its folder there or back, and starts it again."""
    [data] = (fleet.services.folder / "home").glob("postgres-*")
    source, target = (data, fleet.folder / name) if to_backup else (fleet.folder / name, data)
    await asyncio.to_thread(fleet.services.postgres.stop)
    await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
    await asyncio.to_thread(subprocess.run, ["cp", "-a", source, target], check=True)
    await asyncio.to_thread(fleet.services.postgres.start)
    await until(seldom(lambda: answers(fleet)), SECONDS, "Postgres is back")


async def answers(fleet: Fleet) -> bool:
    with suppress(StoreUnavailable):
        await fleet.db.ping()
        return True
    return False


async def found(fleet: Fleet, ids: Sequence[str]) -> list[ResponseRow]:
    return [row for name in ids if (row := await responses.find(fleet.db, name)) is not None]


async def background(fleet: Fleet, asked: str) -> str:
    body = {"model": fleet.plan.model, "input": asked, "background": True}

    async def taken_in() -> str | None:
        answer = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json=body)
        return answer.json()["id"] if answer.status_code == httpx.codes.OK else None

    response_id = await until(seldom(taken_in), SECONDS, "it is accepted")
    assert response_id is not None
    return response_id


async def ended(fleet: Fleet, ids: Sequence[str]) -> list[ResponseRow]:
    """Waits until all are final."""

    async def final() -> list[ResponseRow]:
        rows = await found(fleet, ids)
        return rows if all(row.status.final for row in rows) else []

    return await until(seldom(final), SECONDS, "all are final")


async def taken(fleet: Fleet, owned: dict[str, int]) -> bool:
    rows = [await responses.find(fleet.db, name) for name in owned]
    return all(row is not None and row.attempt > owned[row.id] for row in rows)


async def has_forgotten(fleet: Fleet, member: Member) -> bool:
    """Whether its pool runs nothing while others' do."""
    celery = make_celery(load_settings(REDIS_URL=fleet.services.redis_url))
    stats: dict[str, Any] = await asyncio.to_thread(lambda: celery.control.inspect(timeout=3).stats() or {})
    active = {each["pid"]: each["pool"]["active"] for each in stats.values()}
    return active.get(member.pid) == 0 and sum(active.values()) > 0


def said(row: ResponseRow) -> str:
    return text_of({"output": row.output or []})
