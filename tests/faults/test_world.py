"""Clocks that jump, a failover of Postgres, a changed password and slow networks, each with a known outcome."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import text

from tests.faults import checker, clocks
from tests.faults.arena import Arena
from tests.faults.clocks import Clock
from tests.faults.driver import run
from tests.faults.fleet import SUITE, Fleet, running
from tests.faults.kinds import KINDS
from tests.faults.member import Role
from tests.faults.plan import Plan
from tests.faults.polling import with_pause
from tests.faults.questions import counting
from tests.faults.scenarios import SECONDS, SMALL, background, ended, evidence_of, found, output_text
from tests.faults.streams import Streams
from tests.faults.world_faults import DAY, OTHER_PASSWORD, own_connection
from tests.support.services import PostgresForTests
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

HOUR = 3600


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if clocks.compiler() is None:
        pytest.skip("there is no C compiler, so no clock can be shifted")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small() -> AsyncIterator[Fleet]:
    """The fleet of scenarios that need no standby."""
    async with running(replace(SMALL, passfile=True)) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(small: Fleet) -> Fleet:
    for member in small.members:
        assert member.clock is not None
        member.clock.shift(0)
    await small.wait_until_whole(SECONDS)
    return small


async def test_wrong_clocks_of_processes_delete_nothing_and_end_nothing(fleet: Fleet) -> None:
    for role, days in ((Role.WORKER, -40), (Role.API, -1), (Role.MAINTENANCE, 40)):
        for member in fleet.of(role):
            assert member.clock is not None
            member.clock.shift(days * DAY)
    ids = [await background(fleet, "/count 200") for _ in range(3)]  # a log of some size, which is merged
    await ended(fleet, ids)
    await until(with_pause(lambda: merged(fleet, ids)), SECONDS, "maintenance has swept")
    rows = await found(fleet, ids)
    assert [output_text(row) for row in rows] == [counting(200).answer] * 3
    for row in rows:
        assert row.finished_at is not None
        assert abs(row.finished_at - datetime.now(UTC)) < timedelta(hours=1), "the worker's clock decided"


async def merged(fleet: Fleet, ids: Sequence[str]) -> bool:
    async with fleet.db.autocommit() as connection:
        left = text("SELECT count(*) FROM responses WHERE id = ANY(:ids) AND log = 'live'")
        return (await connection.execute(left, {"ids": list(ids)})).scalar_one() == 0


async def test_a_failover_of_postgres_loses_nothing_and_counts_no_worker_as_dead() -> None:
    """Twice, so that each server of the URL is the primary once more."""
    plan = Plan(apis=1, workers=2, maintenances=1, flower=False, standby=True, tokens_per_second=40.0)
    async with (
        running(plan) as fleet,
        httpx.AsyncClient(timeout=10, verify=False) as http,
        Streams(http, fleet.urls, Random(3), 20, numbers=300) as streams,
    ):
        await streams.begin("before the failover")
        for _ in range(2):
            await until(fleet.busiest, SECONDS, "a worker is at work")
            await KINDS["postgres: failed over"][1](Arena(fleet, Random(1), {}))
        evidence = await evidence_of(fleet, streams)
    assert checker.check(evidence) == []
    assert all(row.crashes == 0 for row in evidence.rows.values())


async def test_while_the_password_of_redis_is_another_work_goes_on_and_no_log_has_it(fleet: Fleet) -> None:
    password = urlsplit(fleet.services.redis_url).password or ""
    async with own_connection(Arena(fleet, Random(1), {})) as client:
        ids = [await background(fleet, "/count 300")]
        await until(fleet.busiest, SECONDS, "a worker is at work")
        await client.execute_command("CONFIG", "SET", "requirepass", OTHER_PASSWORD)
        for kind in ("normal", "pubsub"):
            await client.execute_command("CLIENT", "KILL", "TYPE", kind)
        await ended(fleet, ids)
        late = await background(fleet, "/count 3")
        await client.execute_command("CONFIG", "SET", "requirepass", password)
    rows = await ended(fleet, [*ids, late])
    assert [output_text(row) for row in rows] == [counting(300).answer, counting(3).answer]
    await fleet.wait_until_whole(SECONDS)
    logs = "".join(log.read_text(encoding="utf-8") for log in fleet.folder.glob("*.log"))
    assert password not in logs
    assert OTHER_PASSWORD not in logs


async def test_a_password_of_postgres_that_changes_in_its_file_stops_no_work(fleet: Fleet) -> None:
    url = urlsplit(fleet.services.database_url)
    ids = [await background(fleet, "/count 300") for _ in range(4)]
    await until(fleet.busiest, SECONDS, "a worker is at work")
    try:
        for password in (OTHER_PASSWORD, url.password):
            fleet.write_passfile(str(password))
            async with fleet.db.autocommit() as connection:
                await connection.execute(text(f"ALTER ROLE {url.username} PASSWORD '{password}'"))
                await connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE usename = current_user AND application_name <> :suite"
                    ),
                    {"suite": SUITE},
                )
            ids.append(await background(fleet, "/count 3"))
            await ended(fleet, ids[-1:])
    finally:
        async with fleet.db.autocommit() as connection:
            await connection.execute(text(f"ALTER ROLE {url.username} PASSWORD '{url.password}'"))
    rows = await ended(fleet, ids)
    assert [output_text(row) for row in rows] == [*[counting(300).answer] * 4, *[counting(3).answer] * 2]
    logs = "".join(log.read_text(encoding="utf-8") for log in fleet.folder.glob("*.log"))
    assert OTHER_PASSWORD not in logs and str(url.password) not in logs


async def test_when_the_clock_of_postgres_jumps_back_a_dead_worker_is_noticed_and_forth_all_goes_on(
    fleet: Fleet,
) -> None:
    """The last one on this fleet: the clock of Postgres stays wrong."""
    clock = await clock_of_postgres(fleet)
    ids = [await background(fleet, "/count 600") for _ in range(6)]
    await until(fleet.busiest, SECONDS, "a worker is at work")
    clock.shift(-HOUR)
    worker, _ = await until(fleet.busiest, SECONDS, "a worker is at work")
    worker.signal(signal.SIGKILL)
    rows = await ended(fleet, ids)
    assert any(row.attempt > 1 for row in rows)
    ids += [await background(fleet, "/count 600") for _ in range(6)]
    await until(fleet.busiest, SECONDS, "a worker is at work")
    clock.shift(HOUR)
    rows = await ended(fleet, ids)
    assert [output_text(row) for row in rows] == [counting(600).answer] * 12
    await fleet.wait_until_whole(SECONDS)


async def clock_of_postgres(fleet: Fleet) -> Clock:
    """Starts Postgres again, with a clock that can be shifted."""
    service = fleet.services.postgres.service
    assert isinstance(service, PostgresForTests)
    assert fleet.clocks is not None
    clock = Clock(fleet.clocks, fleet.folder / "postgres.clock")
    service.environment = clock.environment
    await asyncio.to_thread(fleet.services.postgres.restart)
    await fleet.wait_until_whole(SECONDS)
    return clock


async def test_each_of_these_faults_breaks_no_promise() -> None:
    kinds = frozenset(name for name in KINDS if name.startswith("clock: ") or ", slow" in name or "password" in name)
    plan = Plan(seed=133, faults=11, responses=24, pause=0.5, apis=1, workers=2, maintenances=1, flower=False)
    report = await run(replace(plan, kinds=kinds, keys=True))
    assert report.ok, "\n".join(report.lines())
    assert set(report.faults) == kinds, "with other kinds another seed draws each of them"
