"""Single scenarios on real processes, each with a known outcome."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import text

from app.protocol.status import Status
from app.store.queue.workers import SILENT_SECONDS
from tests.faults import audit, checker
from tests.faults.arena import Arena
from tests.faults.evidence import pools
from tests.faults.fleet import Fleet, running
from tests.faults.kinds import KINDS
from tests.faults.member import Member, Role
from tests.faults.plan import LEASE_SECONDS, Plan
from tests.faults.polling import with_pause
from tests.faults.proxy import Mode
from tests.faults.questions import counting
from tests.faults.scenarios import (
    SECONDS,
    SMALL,
    answers,
    background,
    ended,
    evidence_of,
    found,
    output_text,
)
from tests.faults.streams import Streams
from tests.support.waiting import until

UNLIMITED = httpx.Limits(max_connections=None)
pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_CRASHES = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small() -> AsyncIterator[Fleet]:
    """The fleet of all scenarios but the first."""
    async with running(replace(SMALL, max_crashes=MAX_CRASHES)) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(small: Fleet) -> Fleet:
    await small.wait_until_whole(SECONDS)
    return small


@pytest.mark.long
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
            await until(fleet.busiest, SECONDS, f"a worker is at work before {kind}")
            await KINDS[kind][1](arena)
        evidence = await evidence_of(fleet, streams)
    assert checker.check(evidence) == []
    assert all(row.crashes == 0 for row in evidence.rows.values())
    assert any(row.attempt > 1 for row in evidence.rows.values())


async def test_a_zombie_writes_nothing_and_frees_its_engine(fleet: Fleet) -> None:
    ids = [await background(fleet, "/count 9000") for _ in range(6)]  # 7 minutes of work: none ends meanwhile
    zombie, _ = await until(fleet.busiest, SECONDS, "a worker is at work")
    pid, frozen = zombie.pid, zombie.group
    assert pid in frozen and zombie.guardian in frozen
    workers = await fleet.ready_workers()
    identity = workers.pop(pid)
    (other,) = workers.values()

    async def other_has_all() -> bool:  # else the zombie may claim one of them once it has registered again
        return set(await owned_by(fleet, other)) == set(ids)

    send(signal.SIGSTOP, frozen)
    await until(with_pause(other_has_all), SECONDS, "the other worker has all responses")
    send(signal.SIGCONT, frozen)
    await until(with_pause(lambda: runs_nothing(fleet, zombie)), SECONDS, "its pool is empty")
    assert zombie.pid == pid
    new = await until(with_pause(lambda: registered_again(fleet, pid)), SECONDS, "it has registered again")
    assert new != identity
    assert await owned_by(fleet, identity) == [], "the worker that it was owns nothing any more"
    # The other worker runs one after the other until each has committed something: any of them may be a suspect.
    await until(with_pause(lambda: have_tokens(fleet, ids)), SECONDS, "all responses have tokens")
    for name in ids:
        await fleet.http.post(f"{fleet.urls[0]}/v1/responses/{name}/cancel")
    rows = await ended(fleet, ids)
    assert [
        found for row in rows for found in audit.violations((await audit.transitions(fleet.db, [row.id]))[row.id])
    ] == []
    writes = await audit.writes(fleet.db, ids)
    assert [write.violation for each in writes.values() for write in each if write.violation is not None] == []
    assert all(output_text(row) and counting(9000).answer.startswith(output_text(row)) for row in rows)


async def test_the_audit_sees_an_earlier_attempt_write_into_a_log_that_has_ended(fleet: Fleet) -> None:
    (row,) = await ended(fleet, [await background(fleet, "/count 3")])
    async with fleet.db.autocommit() as connection:
        for again in (
            "UPDATE responses SET attempt = attempt + 1 WHERE id = :id",
            "UPDATE chunks SET frames = frames WHERE response_id = :id",
        ):
            await connection.execute(text(again), {"id": row.id})
    writes = (await audit.writes(fleet.db, [row.id]))[row.id]
    assert [write.violation for write in writes[: len(writes) // 2]] == [None] * (len(writes) // 2)
    assert {write.violation for write in writes[len(writes) // 2 :]} == {"was written while attempt 2 owned it"}


@pytest.mark.long
@pytest.mark.parametrize("mode", [Mode.STALL, Mode.CUT])
async def test_while_postgres_is_away_for_longer_than_the_lease_no_worker_dies(fleet: Fleet, mode: Mode) -> None:
    """A managed failover takes a minute. Nobody can send a heartbeat meanwhile, and that is no crash."""
    before = await fleet.ready_workers()
    ids = [await background(fleet, "/count 150") for _ in range(6)]
    await until(fleet.busiest, SECONDS, "a worker is at work")
    for member in fleet.members:
        member.postgres.set(mode)
    await asyncio.sleep(max(LEASE_SECONDS, SILENT_SECONDS) + 2)
    for member in fleet.members:
        member.postgres.set(Mode.OPEN)
    rows = await ended(fleet, ids)
    assert [output_text(row) for row in rows] == [counting(150).answer] * len(ids)
    assert [(row.attempt, row.crashes) for row in rows] == [(1, 0)] * len(ids)

    async def are_ready_as_before() -> bool:  # the responses may end before the next heartbeats
        return await fleet.ready_workers() == before

    await until(with_pause(are_ready_as_before), SECONDS, "the same workers have their leases")


@pytest.mark.long
async def test_a_response_that_kills_engines_is_failed_and_takes_no_other_with_it(fleet: Fleet) -> None:
    starts = sum(member.starts for member in fleet.of(Role.WORKER))
    ids = [await background(fleet, "/count 300") for _ in range(8)]
    await until(fleet.busiest, SECONDS, "a worker is at work")
    [killer] = await ended(fleet, [await background(fleet, "/die 20")])
    assert killer.status is Status.FAILED
    assert killer.error == {"code": "server_error", "message": f"the engine died {MAX_CRASHES} times while it ran"}
    # the last one may not have started yet
    assert sum(member.starts for member in fleet.of(Role.WORKER)) >= starts + MAX_CRASHES - 1
    rows = await ended(fleet, ids)
    assert [row.status for row in rows] == [Status.COMPLETED] * len(ids), [row.error for row in rows]
    assert all(output_text(row) == counting(300).answer for row in rows)


@pytest.mark.long
async def test_a_restored_backup_continues_where_it_was(fleet: Fleet) -> None:
    """docs/reliability.md: a copy of Postgres is the whole backup, and what was in progress is taken over."""
    ids = [await background(fleet, "/count 400") for _ in range(6)]
    await until(fleet.busiest, SECONDS, "a worker is at work")
    await copied(fleet, "backup", to_backup=True)
    later = await background(fleet, "/count 3")
    await ended(fleet, [*ids, later])
    await asyncio.gather(*(member.close() for member in fleet.members))
    await copied(fleet, "backup", to_backup=False)
    await asyncio.to_thread(fleet.services.empty_valkey)
    restored = await found(fleet, ids)
    assert not any(row.status.final for row in restored), "the backup has no final response"
    begun = {row.id for row in restored if row.status is Status.IN_PROGRESS}
    assert begun
    for member in fleet.members:
        member.start()
    rows = await ended(fleet, ids)
    assert all(output_text(row) == counting(400).answer for row in rows)
    assert all(row.attempt > 1 for row in rows if row.id in begun)
    assert await found(fleet, [later]) == []


async def copied(fleet: Fleet, name: str, *, to_backup: bool) -> None:
    """Stops Postgres, copies its folder to or from the backup, and starts it again."""
    [data] = (fleet.services.folder / "home").glob("postgres-[0-9]*")
    source, target = (data, fleet.folder / name) if to_backup else (fleet.folder / name, data)
    await asyncio.to_thread(fleet.services.postgres.stop)
    await asyncio.to_thread(shutil.rmtree, target, ignore_errors=True)
    await asyncio.to_thread(subprocess.run, ["cp", "-a", source, target], check=True)
    await asyncio.to_thread(fleet.services.postgres.start)
    await until(with_pause(lambda: answers(fleet)), SECONDS, "Postgres is back")


def send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, number)


async def registered_again(fleet: Fleet, pid: int) -> str | None:
    return (await fleet.ready_workers()).get(pid)


async def owned_by(fleet: Fleet, worker: str) -> list[str]:
    async with fleet.db.autocommit() as connection:
        found = await connection.execute(text("SELECT id FROM responses WHERE worker = :id"), {"id": worker})
        return list(found.scalars())


async def have_tokens(fleet: Fleet, ids: list[str]) -> bool:
    statement = text("SELECT count(DISTINCT response_id) FROM chunks WHERE response_id = ANY(:ids) AND tokens <> ''")
    async with fleet.db.autocommit() as connection:
        return (await connection.execute(statement, {"ids": ids})).scalar() == len(ids)


async def runs_nothing(fleet: Fleet, member: Member) -> bool:
    """Whether its pool is empty while other pools are not."""
    active = await pools(fleet)
    return active.get(member.pid or 0) == 0 and sum(active.values()) > 0


@pytest.mark.long
async def test_a_response_that_makes_progress_outlives_any_number_of_hard_kills(fleet: Fleet) -> None:
    response_id = await background(fleet, "/count 1500")
    kills = 10
    for attempt in range(1, kills + 1):
        owner = await until(with_pause(lambda n=attempt: owner_of(fleet, response_id, n)), SECONDS, "it has an owner")
        owner.signal(signal.SIGKILL)
    [row] = await ended(fleet, [response_id])
    assert (row.status, row.crashes, row.attempt) == (Status.COMPLETED, 0, kills + 1)
    assert output_text(row) == counting(1500).answer


async def owner_of(fleet: Fleet, response_id: str, attempt: int) -> Member | None:
    """The worker whose attempt at the response has committed tokens."""
    statement = text(
        "SELECT w.pid FROM responses r JOIN workers w ON w.id = r.worker WHERE r.id = :id AND r.attempt = :attempt"
        " AND EXISTS (SELECT FROM chunks c WHERE c.response_id = r.id AND c.attempt = r.attempt AND c.tokens <> '')"
    )
    async with fleet.db.autocommit() as connection:
        pid = (await connection.execute(statement, {"id": response_id, "attempt": attempt})).scalar()
    return next((member for member in fleet.of(Role.WORKER) if member.pid == pid), None) if pid else None


@pytest.mark.long
async def test_of_three_models_those_without_a_poisonous_request_notice_nothing_and_all_good_ones_complete() -> None:
    plan = replace(SMALL, workers=3, more_models=2, max_crashes=MAX_CRASHES)
    async with running(plan) as fleet:
        good = {name: [await background(fleet, "/count 300", name) for _ in range(4)] for name in plan.names}
        await until(lambda: fleet.busiest(), SECONDS, "a worker is at work")
        poison = [await background(fleet, f"/die {at}", name) for at, name in enumerate(plan.names[:2])]
        late = {name: [await background(fleet, "/count 60", name) for _ in range(4)] for name in plan.names}
        for row in await ended(fleet, poison):
            message = f"the engine died {MAX_CRASHES} times while it ran"
            assert row.error == {"code": "server_error", "message": message}
        for name in plan.names:
            rows, later = await ended(fleet, good[name]), await ended(fleet, late[name])
            assert [output_text(row) for row in rows] == [counting(300).answer] * 4
            assert [output_text(row) for row in later] == [counting(60).answer] * 4
            if name == plan.names[2]:
                assert {row.attempt for row in (*rows, *later)} == {1}
        assert [member.starts for member in fleet.of(Role.WORKER)][2] == 1
