"""What operators' looks, lists and bulk actions take with a million responses: `python -m tests.bench.bulk`.

Postgres is real. 900,000 responses have ended, 100,000 wait, of three models and five projects; a rare one of each kind
is among them. Lists are read with the filters that match least. Then all that wait are cancelled, by the steps that
maintenance takes. All of it is measured as Postgres has not vacuumed yet what came or ended last, and then as it has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import Database
from app.store.migrate import migrate
from app.store.operations import actions, cancels, listing
from app.store.operations.actions import ActionKind, NewAction
from app.store.operations.filters import ResponseFilter
from app.store.packing import pack_events
from app.store.queue import backlog, fleet, overview, roster, standing
from tests.support.requests import stored_request
from tests.support.rows import new_response
from tests.support.services import Server, Services

PAGES = 10
LOOKS = 7
RETENTION = 3600.0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


_FILL = """
    INSERT INTO responses (id, project, model, queue, priority, status, background, stream, store, request, created_at,
        inserted_at, input_bytes, cost, chain_length, context_bytes, layout, key_id, metadata, started_at, attempt,
        finished_at, output, error, error_code, usage, log, sent_to, batch_id, batch_line, custom_id)
    SELECT 'resp_' || lpad(to_hex(n + CAST(:first AS int)), 12, '0') || substr(md5(n::text), 1, 28),
        CASE WHEN n % 300000 = 7 THEN 'few' ELSE 'project-' || n / 3 % 5 END,
        'm' || n % 3, 'model.m' || n % 3, 6, s.status, true, n % 2 = 0, true, CAST(:request AS json),
        now() - make_interval(secs => 1000000 - :first - n), now() - make_interval(secs => 1000000 - :first - n),
        0, 100, 1, 0, 1, CASE WHEN n % 300000 = 9 THEN 'key_few' ELSE 'key_many' END,
        CASE WHEN n % 300000 = 11 THEN CAST('{"run":"rare"}' AS json)
            WHEN n % 2 = 0 THEN CAST('{"run":"nightly","line":"' || n || '"}' AS json) END,
        s.at, CASE WHEN s.status = 'queued' THEN 0 ELSE 1 END, s.at,
        CASE WHEN s.status <> 'queued' THEN CAST('[]' AS json) END,
        CASE WHEN s.status = 'failed' THEN CAST('{"code":"server_error","message":"x"}' AS json) END,
        CASE WHEN s.status = 'failed' THEN CASE WHEN n % 300000 = 13 THEN 'rare_error' ELSE 'server_error' END END,
        NULL, CASE WHEN s.status = 'queued' THEN 'live' ELSE 'deleted' END,
        CASE WHEN s.status <> 'queued' THEN 'worker@host' END, b.id, CASE WHEN b.id IS NOT NULL THEN n END,
        CASE WHEN b.id IS NOT NULL THEN n::text END
    FROM generate_series(1, CAST(:count AS int)) n CROSS JOIN LATERAL (
        SELECT CASE WHEN CAST(:queued AS boolean) THEN 'queued' WHEN n % 300000 = 13 OR n % 20 = 1 THEN 'failed'
            ELSE 'completed' END AS status,
            CASE WHEN NOT CAST(:queued AS boolean) THEN now() - make_interval(secs => 900000 - :first - n) END AS at
    ) s LEFT JOIN batches b ON b.project = 'project-' || n / 3 % 5 AND NOT CAST(:queued AS boolean)
        AND now() - make_interval(secs => 1000000 - n) BETWEEN b.created_at AND b.completed_at ORDER BY n
"""
_BATCH = """
    INSERT INTO batches (id, project, endpoint, input_file, completion_window, status, created_at, due_at, completed_at)
    VALUES ('batch_1', 'project-2', '/v1/responses', 'file_1', '24h', 'completed',
        now() - interval '800000 s', now(), now() - interval '750000 s')
"""
OPEN = """
    INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)
    SELECT id, 0, 1, 0, false, '', :frames, :size FROM responses WHERE status = 'queued'
"""

FILTERS = {
    "none": ResponseFilter(),
    "completed": ResponseFilter(statuses=(Status.COMPLETED,)),
    "a project that has few": ResponseFilter(project="few"),
    "a key that has few": ResponseFilter(key="key_few"),
    "an error code that few have": ResponseFilter(error_code="rare_error"),
    "failed, metadata of few": ResponseFilter(statuses=(Status.FAILED,), metadata=(("run", "rare"),)),
    "metadata of few": ResponseFilter(metadata=(("run", "rare"),)),
    "metadata of nobody": ResponseFilter(metadata=(("run", "never"),)),
    "a model of nobody": ResponseFilter(model="other"),
    "a project, cancelled": ResponseFilter(project="project-1", statuses=(Status.CANCELLED,)),
    "a time in the middle": ResponseFilter(until=datetime.fromtimestamp(time.time() - 500_000, UTC)),
    "a batch": ResponseFilter(batch="batch_1"),
    "a batch, failed": ResponseFilter(batch="batch_1", statuses=(Status.FAILED,)),
    "queued, flex": ResponseFilter(statuses=(Status.QUEUED,), tier="flex"),
}


async def fill(owner: Database, finished: int, queued: int) -> None:
    new = new_response()
    frames = pack_events(new.opening.frames)
    async with owner.begin(large=True) as connection:
        # Once the rest is vacuumed, what comes is not, until the benchmark says so.
        await connection.execute(text("ALTER TABLE responses SET (autovacuum_enabled = off)"))
        for project in ("few", *(f"project-{number}" for number in range(5))):
            await connection.execute(
                text(f"INSERT INTO projects (id, name, created_at) VALUES ('{project}', 'x', now())")
            )
        await connection.execute(text(_BATCH))
    request = json.dumps(stored_request(), separators=(",", ":"))
    for first, count, is_queued in ((0, finished, False), (finished, queued, True)):
        values = {"first": first, "count": count, "queued": is_queued, "request": request}
        async with owner.begin(large=True) as connection:
            await connection.execute(text(_FILL), values)
        if not is_queued:
            async with owner.autocommit() as connection:
                await connection.execute(text("VACUUM ANALYZE responses"))
    async with owner.begin(large=True) as connection:
        await connection.execute(text(OPEN), {"frames": frames, "size": len(new.opening.frames)})


async def autovacuumed(owner: Database) -> None:
    """Lets Postgres vacuum the responses, by the settings of the table and of `longhaul up`, and waits until it has."""
    count = text("SELECT autovacuum_count FROM pg_stat_all_tables WHERE relid = 'responses'::regclass")
    (before,) = await owner.execute(count)
    await owner.execute(text("ALTER TABLE responses RESET (autovacuum_enabled)"))
    begun = time.perf_counter()
    while (await owner.execute(count))[0] == before:  # noqa: ASYNC110 - Postgres does not tell
        await asyncio.sleep(0.2)
    await owner.execute(text("ALTER TABLE responses SET (autovacuum_enabled = off)"))
    say(f"-- Postgres has vacuumed, {time.perf_counter() - begun:.0f} s later")


async def look(db: Database) -> None:
    """What looks at all that has not ended take."""
    middle = "SELECT id FROM responses WHERE status = 'queued' ORDER BY inserted_at OFFSET 50000 LIMIT 1"
    waiting = [row.id for row in await db.execute(text(middle))]

    async def why() -> None:
        response = await standing.find(db, waiting[0])
        assert response is not None
        await standing.surroundings(db, response)

    looks: dict[str, Callable[[], Awaitable[object]]] = {
        "a scrape": lambda: fleet.read(db, RETENTION),
        "status": lambda: overview.read(db, RETENTION, ["model.m0"]),
        "queue by model": lambda: backlog.read(db, "model"),
        "queue by key": lambda: backlog.read(db, "key"),
        "workers": lambda: roster.read(db),
    }
    for name, each in (looks | ({"why": why} if waiting else {})).items():
        times = []
        for _ in range(LOOKS):
            begun = time.perf_counter()
            await each()
            times.append(time.perf_counter() - begun)
        say(f"{name:30} {statistics.median(times) * 1000:6.1f} ms median, {max(times) * 1000:6.1f} ms most")


async def list_all(db: Database) -> None:
    for name, only in FILTERS.items():
        times, after, found, pages = [], None, 0, 0
        for _ in range(PAGES):
            begun = time.perf_counter()
            page = await listing.find_page(db, only, 20, after)
            times.append(time.perf_counter() - begun)
            assert page is not None
            found, after, pages = found + len(page.entries), page.last_id, pages + 1
            if not page.has_more:
                break
        begun = time.perf_counter()
        count = await listing.count(db, only, tuple(Status))
        counted = time.perf_counter() - begun
        say(
            f"{name:30} {statistics.median(times) * 1000:6.1f} ms median, {max(times) * 1000:6.1f} ms most,"
            f" {pages} pages, {found} found; count {count.matching} in {counted * 1000:.0f} ms"
        )


def cpu_seconds(pids: Sequence[int]) -> dict[int, float]:
    """What each of these processes has taken of CPUs."""
    times = {pid: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13] for pid in pids}
    return {pid: sum(map(int, pair)) / os.sysconf("SC_CLK_TCK") for pid, pair in times.items()}


async def cancel_all(db: Database, postgres: Server) -> None:
    only = ResponseFilter(statuses=(Status.QUEUED,))
    async with db.begin() as connection:
        await actions.add(connection, NewAction("action_1", ActionKind.CANCEL, only, "bench", None, 100_000))
    before = cpu_seconds(postgres.pids)
    begun = time.perf_counter()
    steps, longest, cpu = 0, 0.0, time.process_time()
    (seen,) = await actions.running(db)
    step = begun
    async for done in cancels.steps(db, seen):
        longest, steps, step = max(longest, time.perf_counter() - step), steps + 1, time.perf_counter()
        seen = done.action
    seconds = time.perf_counter() - begun
    server = sum(taken - before.get(pid, 0.0) for pid, taken in cpu_seconds(postgres.pids).items())
    say(
        f"cancelled {seen.done} in {seconds:.1f} s, {steps} steps of at most"
        f" {longest:.2f} s, {time.process_time() - cpu:.1f} s of CPU here,"
        f" {server:.1f} s in Postgres"
    )


async def measure(services: Services, finished: int, queued: int) -> None:
    owner, db = Database(services.owner_url, 1, driver_seconds=None), Database(services.database_url, 4)
    await migrate(owner)
    begun = time.perf_counter()
    await fill(owner, finished, queued)
    say(f"filled in {time.perf_counter() - begun:.0f} s")
    for is_cancelled in (False, True):
        if is_cancelled:
            await cancel_all(db, services.postgres)
        await list_all(db)
        await look(db)
        await autovacuumed(owner)
        await list_all(db)
        await look(db)
    await owner.close()
    await db.close()


def main(finished: int, queued: int) -> None:
    services = Services()
    try:
        asyncio.run(measure(services, finished, queued))
    finally:
        services.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--finished", type=int, default=900_000)
    parser.add_argument("--queued", type=int, default=100_000)
    given = parser.parse_args()
    main(given.finished, given.queued)
