"""Single scenarios on real processes, each with a known outcome, all on one fleet."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import pytest_asyncio
from sqlalchemy import text

from app.batches.expander import AHEAD_OF_SLOT, LINES_AHEAD, STEP_LINES
from app.protocol.requests.bodies.batch import RESPONSES
from app.protocol.status import Status
from app.store.database import StoreUnavailable
from app.store.queue.workers import POSTGRES_SILENT_SECONDS
from tests.faults import batch_rules, batches, full_disk
from tests.faults.arena import Arena
from tests.faults.batch_clients import BatchClient
from tests.faults.evidence import Evidence, pools
from tests.faults.fleet import SUITE, Fleet, running
from tests.faults.member import Role
from tests.faults.moments import cancel_heartbeats, deadlock
from tests.faults.plan import LEASE_SECONDS, MODEL, Plan
from tests.faults.polling import with_pause
from tests.faults.process_faults import DAY, all_killed, send
from tests.faults.proxy import Mode
from tests.faults.questions import counting
from tests.faults.records import BatchStory
from tests.faults.scenarios import (
    SECONDS,
    at_work,
    background,
    busiest,
    completed,
    ended,
    one,
    output_text,
    rows_of,
    worker_with,
)
from tests.faults.service_faults import OTHER_PASSWORD
from tests.faults.store_faults import statements_time_out
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

LONG = 150
"""A response that counts to this takes about five seconds."""
SLOTS = 6


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Fleet]:
    async with running(Plan(apis=1, workers=2, maintenances=1, flower=False, concurrency=SLOTS)) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(shared: Fleet) -> Fleet:
    await shared.wait_until_whole()
    return shared


# -- workers ---------------------------------------------------------------------------------------------------


async def test_a_zombie_writes_nothing_and_frees_its_engine(fleet: Fleet) -> None:
    ids = await background(fleet, 9000, SLOTS)  # 7 minutes of work: none ends meanwhile
    zombie = await busiest(fleet)
    pid, frozen = zombie.pid, zombie.group
    assert pid in frozen
    workers = await fleet.ready_workers()
    identity = workers.pop(pid)
    (other,) = workers.values()
    owned = "SELECT count(*) FROM responses WHERE worker = :id AND status = 'in_progress'"

    async def other_has_all() -> bool:  # else the zombie may claim one of them once it has registered again
        return await one(fleet, owned, id=other) == len(ids)

    async def runs_nothing() -> bool:
        active = await pools(fleet)
        return active.get(pid) == 0 and sum(active.values()) > 0

    async def registered_again() -> str | None:
        return (await fleet.ready_workers()).get(pid)

    async def all_have_tokens() -> bool:  # the other runs one after the other until then: any may be a suspect
        with_tokens = "SELECT count(DISTINCT response_id) FROM chunks WHERE response_id = ANY(:ids) AND tokens <> ''"
        return await one(fleet, with_tokens, ids=ids) == len(ids)

    send(signal.SIGSTOP, frozen)
    await until(with_pause(other_has_all), SECONDS, "the other worker has all responses")
    send(signal.SIGCONT, frozen)
    await until(with_pause(runs_nothing), SECONDS, "its pool is empty")
    assert zombie.pid == pid
    assert await until(with_pause(registered_again), SECONDS, "it has registered again") != identity
    assert await one(fleet, owned, id=identity) == 0, "the worker that it was owns nothing any more"
    await until(with_pause(all_have_tokens), SECONDS, "all responses have tokens")
    for name in ids:
        await fleet.http.post(f"{fleet.urls[0]}/v1/responses/{name}/cancel")
    rows = await ended(fleet, ids)
    assert all(output_text(row) and counting(9000).answer.startswith(output_text(row)) for row in rows)


async def test_background_yields_to_streams_and_ends_once_also_if_its_worker_is_killed(fleet: Fleet) -> None:
    numbers = 400
    ids = await background(fleet, numbers, 2 * SLOTS - 1)
    steady = (
        "SELECT count(*) FROM responses WHERE id = ANY(:ids) AND status = 'in_progress' AND worker IS NOT NULL"
        " AND started_at < now() - interval '5.2 seconds'"
    )
    yielded = (
        "SELECT w.pid FROM workers w JOIN responses r ON r.worker = w.id WHERE w.lease_until > now()"
        " AND r.foreground_place AND EXISTS (SELECT FROM responses WHERE id = ANY(:ids) AND yields > 0)"
    )

    async def answer() -> str:
        body = {"model": MODEL, "input": f"/count {numbers // 2}"}
        done = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json=body, timeout=httpx.Timeout(SECONDS))
        assert done.status_code == httpx.codes.OK, done.text
        return "".join(part["text"] for item in done.json()["output"] for part in item.get("content", ()))

    async def all_are_steady() -> bool:
        return await one(fleet, steady, ids=ids) >= len(ids) - 1

    await until(with_pause(all_are_steady), SECONDS, "every slot is taken by what may yield")
    streams = [asyncio.create_task(answer()) for _ in range(4)]
    worker = worker_with(fleet, await until(with_pause(partial(one, fleet, yielded, ids=ids)), SECONDS, "one yields"))
    assert worker is not None
    worker.signal(signal.SIGKILL)
    assert await asyncio.gather(*streams) == [counting(numbers // 2).answer] * len(streams)
    rows = await ended(fleet, ids)
    assert [row.status for row in rows] == [Status.COMPLETED] * len(ids), [row.error for row in rows]
    assert {output_text(row) for row in rows} == {counting(numbers).answer}
    assert sum(row.yields for row in rows) >= 1
    assert max(row.crashes for row in rows) <= 1, "a yield is no crash"


# -- Postgres --------------------------------------------------------------------------------------------------


async def test_while_postgres_is_away_for_longer_than_the_lease_no_worker_dies(fleet: Fleet) -> None:
    """A managed failover takes a minute. Nobody can send a heartbeat meanwhile, and that is no crash."""
    before = await fleet.ready_workers()

    async def are_ready_as_before() -> bool:
        return await fleet.ready_workers() == before

    for mode in (Mode.STALL, Mode.CUT):
        ids = await at_work(fleet, LONG, 4)
        await until(with_pause(are_ready_as_before), SECONDS, "all workers are there")
        for member in fleet.members:
            member.postgres.set(mode)
        await asyncio.sleep(max(LEASE_SECONDS, POSTGRES_SILENT_SECONDS) + 2)
        for member in fleet.members:
            member.postgres.set(Mode.OPEN)
        assert [row.attempt for row in await completed(fleet, ids, LONG)] == [1] * len(ids), mode
        await until(with_pause(are_ready_as_before), SECONDS, "the same workers have their leases")


async def test_what_postgres_does_to_single_statements_costs_no_response_a_token(fleet: Fleet) -> None:
    """A full disk, cancelled heartbeats, a deadlock, and time-outs, in which workers may count as dead."""
    ids = await at_work(fleet, LONG, 4)
    async with full_disk.filled(fleet.db):
        answer = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json={"model": MODEL, "input": "Hi"})
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert "retry-after" in answer.headers
    await completed(fleet, ids, LONG)

    ids, before = await at_work(fleet, LONG, 4), await fleet.ready_workers()
    assert await cancel_heartbeats(fleet, fleet.of(Role.WORKER)[0], times=3) == 3
    assert [row.attempt for row in await completed(fleet, ids, LONG)] == [1] * len(ids)
    assert await fleet.ready_workers() == before

    counted = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    deadlocks = await one(fleet, counted)

    async def more_deadlocks() -> bool:
        return await one(fleet, counted) > deadlocks

    async def happened() -> list[str]:
        ids = await at_work(fleet, LONG, 4)
        await deadlock(Arena(fleet, Random(5)))
        with suppress(AssertionError):  # Postgres counts within a second
            await until(with_pause(more_deadlocks), 2)
            return ids
        return []

    await completed(fleet, await until(happened, SECONDS, "Postgres finds a deadlock"), LONG)

    ids = await at_work(fleet, LONG, 4)
    await statements_time_out(Arena(fleet, Random(5)))
    rows = await ended(fleet, ids)
    assert [output_text(row) for row in rows] == [counting(LONG).answer] * len(ids), [row.error for row in rows]


async def test_a_claim_that_a_crash_of_postgres_undid_is_made_again_and_no_end_is_taken_back(fleet: Fleet) -> None:
    """Claims do not wait for the disk (docs/reliability.md). What flushes them is kept from doing so here."""
    postgres = fleet.services.postgres
    workers = [pid for member in fleet.of(Role.WORKER) if (pid := member.pid)]
    send(signal.SIGSTOP, workers)
    ids = await background(fleet, LONG)

    async def has_status(status: Status) -> bool:
        with suppress(httpx.TransportError):
            answer = await fleet.http.get(f"{fleet.urls[0]}/v1/responses/{ids[0]}")
            return answer.status_code == httpx.codes.OK and answer.json()["status"] == status.value
        return False

    with suppress(StoreUnavailable):  # its connection dies with Postgres
        async with fleet.db.begin() as connection:
            await connection.execute(text("LOCK TABLE chunks IN SHARE MODE"))
            await connection.execute(text("SELECT id FROM workers ORDER BY id FOR NO KEY UPDATE"))
            titles = {pid: " ".join(psutil.Process(pid).cmdline()) for pid in postgres.pids}
            send(signal.SIGSTOP, [pid for pid, title in titles.items() if "walwriter" in title])
            send(signal.SIGCONT, workers)
            await until(partial(has_status, Status.IN_PROGRESS), SECONDS, "a poll sees the claim")
            crashed = time.time()
            await asyncio.to_thread(postgres.kill)
    await asyncio.to_thread(postgres.start)
    (row,) = await completed(fleet, ids, LONG)
    assert row.started_at is not None and row.started_at.timestamp() > crashed, "the first claim was undone"
    await asyncio.to_thread(postgres.kill)
    await asyncio.to_thread(postgres.start)
    await until(partial(has_status, Status.COMPLETED), SECONDS, "its end is still there")


async def test_a_restored_backup_continues_where_it_was(fleet: Fleet) -> None:
    """docs/reliability.md: a copy of Postgres is the whole backup, and what was in progress is taken over."""
    ids = await at_work(fleet, 400, 4)
    [data], backup = (fleet.services.folder / "home").glob("postgres-[0-9]*"), fleet.folder / "backup"

    def copy(source: object, target: object) -> None:
        fleet.services.postgres.stop()
        shutil.rmtree(str(target), ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
        fleet.services.postgres.start()

    await asyncio.to_thread(copy, data, backup)
    later = await background(fleet, 3)
    await ended(fleet, [*ids, *later])
    await asyncio.gather(*(member.close() for member in fleet.members))
    await asyncio.to_thread(copy, backup, data)
    await asyncio.to_thread(fleet.services.empty_valkey)
    restored = await rows_of(fleet, ids)
    assert not any(row.status.final for row in restored), "the backup has no final response"
    begun = {row.id for row in restored if row.status is Status.IN_PROGRESS}
    assert begun
    for member in fleet.members:
        member.start()
    rows = await completed(fleet, ids, 400)
    assert all(row.attempt > 1 for row in rows if row.id in begun)
    assert await rows_of(fleet, later) == []


# -- clocks and passwords --------------------------------------------------------------------------------------


async def test_wrong_clocks_of_processes_delete_nothing_and_end_nothing(fleet: Fleet) -> None:
    if fleet.clocks is None:
        pytest.skip("there is no C compiler, so no clock can be shifted")
    try:
        for role, days in ((Role.WORKER, -40), (Role.API, -1), (Role.MAINTENANCE, 40)):
            for member in fleet.of(role):
                assert member.clock is not None
                member.clock.shift(days * DAY)
        ids = await background(fleet, 200, 3)  # a log of some size, which is merged
        rows = await completed(fleet, ids, 200)
        live = "SELECT count(*) FROM responses WHERE id = ANY(:ids) AND log = 'live'"

        async def merged() -> bool:
            return await one(fleet, live, ids=ids) == 0

        await until(with_pause(merged), SECONDS, "maintenance has swept")
    finally:
        for member in fleet.members:
            assert member.clock is not None
            member.clock.shift(0)
    assert len(await rows_of(fleet, ids)) == len(ids)
    for row in rows:
        assert row.finished_at is not None
        assert abs(row.finished_at - datetime.now(UTC)) < timedelta(hours=1), "the worker's clock decided"
        assert datetime.now(UTC) - row.created_at > timedelta(hours=23), "the API's clock shows there alone"


async def test_while_a_password_is_another_work_goes_on_and_no_log_has_it(fleet: Fleet) -> None:
    """Redis' password is not told to the processes; Postgres' they read in a file."""
    old = [urlsplit(url).password or "" for url in (fleet.services.redis_url, fleet.services.database_url)]
    owner = urlsplit(fleet.services.database_url).username
    cut = (
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{owner}' AND application_name <> :us"
    )
    ids = await at_work(fleet, 300, 4)
    async with fleet.valkey as pool, pool.client() as client:
        await client.execute_command("CONFIG", "SET", "requirepass", OTHER_PASSWORD)
        for kind in ("normal", "pubsub"):
            await client.execute_command("CLIENT", "KILL", "TYPE", kind)
        await completed(fleet, ids, 300)
        late = await background(fleet, 3)
        await client.execute_command("CONFIG", "SET", "requirepass", old[0])
    await completed(fleet, late, 3)

    ids = await at_work(fleet, 300, 4)
    try:
        for password in (OTHER_PASSWORD, old[1]):
            fleet.write_password(password)
            await fleet.db.execute(text(f"ALTER ROLE {owner} PASSWORD '{password}'"))
            await fleet.db.execute(text(cut), {"us": SUITE})
            await completed(fleet, await background(fleet, 3), 3)
    finally:
        await fleet.db.execute(text(f"ALTER ROLE {owner} PASSWORD '{old[1]}'"))
    await completed(fleet, ids, 300)
    logs = "".join(log.read_text(encoding="utf-8") for log in fleet.folder.glob("*.log"))
    assert not any(password in logs for password in (*old, OTHER_PASSWORD))


# -- batches ---------------------------------------------------------------------------------------------------

LINES = LINES_AHEAD + AHEAD_OF_SLOT * 2 * SLOTS + STEP_LINES
"""More than are responses at a time."""
BATCH_SECONDS = 400.0
STAGES: list[tuple[str, Callable[[Any], bool], Role]] = [
    ("some lines are responses", lambda row: row.expanded > 0, Role.MAINTENANCE),
    ("others wait in the file", lambda row: row.numbered > 0 and row.expanded < LINES, Role.MAINTENANCE),
    ("a third has ended", lambda row: row.numbered > LINES // 3, Role.WORKER),
    ("half has ended", lambda row: row.numbered > LINES // 2, Role.API),
    ("all have ended", lambda row: row.numbered == LINES, Role.MAINTENANCE),
]


class Batch:
    """A batch whose lines count so far."""

    def __init__(self, fleet: Fleet, numbers: int) -> None:
        self._fleet = fleet
        lines = {f"{numbers}-line-{number}": counting(numbers) for number in range(LINES)}
        self.story = BatchStory(f"counting to {numbers}", RESPONSES, "24h", lines)
        self.client = BatchClient(fleet.http, fleet.urls, self.story, Random(1))

    async def row(self) -> Any:
        statement = text("SELECT * FROM batches WHERE id = :id")
        return (await self._fleet.db.execute(statement, {"id": self.story.batch_id}))[0]

    async def reached(self, what: str, holds: Callable[[Any], bool]) -> None:
        async def look() -> bool:
            return holds(await self.row())

        await until(look, BATCH_SECONDS, what)

    async def findings(self) -> list[tuple[str, str]]:
        """What does not hold of the batch, which has ended."""
        await asyncio.wait_for(self.client.end(), BATCH_SECONDS)
        batch_id = self.story.batch_id or ""
        ended = (await batches.gather(self._fleet))[batch_id]
        rows = {row.id: row for row in await rows_of(self._fleet, [name for _, name in ended.responses])}
        evidence = Evidence([], rows=rows, batch_stories=[self.story], batches={batch_id: ended})
        return [finding for rule in batch_rules.RULES for finding in rule(evidence)]


async def test_every_line_has_one_result_whoever_is_killed_at_whatever_stage(fleet: Fleet) -> None:
    batch = Batch(fleet, 12)
    await batch.client.create()
    following = asyncio.create_task(batch.client.follow())
    try:
        for what, holds, role in STAGES:
            await batch.reached(what, holds)
            await all_killed(role)(Arena(fleet, Random(1)))
        await asyncio.wait_for(following, SECONDS)  # It may hear of the end by its next look, not by a doorbell.
        assert await batch.findings() == []
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert [each["number"] for each in batch.story.seen[:-1]] == list(range(1, LINES + 1))
    assert batch.story.polls[-1]["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}


async def test_a_cancelled_batch_has_every_line_once_whoever_is_killed_meanwhile(fleet: Fleet) -> None:
    batch = Batch(fleet, 100)
    await batch.client.create()
    await batch.reached("some have ended", lambda row: row.expanded > 0 and row.numbered > 0)
    await batch.client.cancel()
    numbered = (await batch.row()).numbered
    await batch.reached("lines are ended", lambda row: row.numbered > numbered or row.written > 0)
    await all_killed(Role.MAINTENANCE, Role.WORKER)(Arena(fleet, Random(1)))
    assert await batch.findings() == []
    assert batch.story.polls[-1]["status"] == "cancelled"
    assert 0 < batch.story.polls[-1]["request_counts"]["completed"] < LINES
