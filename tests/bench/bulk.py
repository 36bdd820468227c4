"""What operators' looks, lists and bulk cancels take with a million responses: `make bench-bulk`.

Longhaul runs as in production, on the scripted engine. 900,000 responses have ended, 10,000 of them lines of a batch,
and 100,000 wait, of three models without a worker and five projects; a rare one of each kind is among them. Lists are
read with the filters that match least. Then maintenance cancels all that wait, a batch of 50,000 lines that runs, and,
beside streams, once more so many as at first. Looks and lists are measured before and after the first cancel: as
Postgres has not vacuumed yet what came or ended last, and then as it has.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import Database
from app.store.operations import actions, listing
from app.store.operations.actions import ActionKind, ActionRow, ActionState, NewAction
from app.store.operations.filters import ResponseFilter
from app.store.packing import pack_events
from app.store.queue import backlog, fleet, overview, response_facts, worker_rows
from tests.bench.batches import create
from tests.bench.contenders.longhaul import Longhaul
from tests.bench.contenders.models import scripted
from tests.bench.contenders.run_batch import batch_file
from tests.bench.load import Load, Mode
from tests.bench.measurement import measure_load
from tests.bench.prompts import SCRIPT
from tests.support.requests import stored_request
from tests.support.rows import new_response
from tests.support.services import open_folder
from tests.support.waiting import until

PATIENCE_SECONDS = 120.0
LOOKS = 7
RETENTION = 3600.0
PROJECTS = ("few", *(f"project-{number}" for number in range(5)))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


_FILL = """
    INSERT INTO responses (id, project, model, queue, priority, status, background, stream, store, request, created_at,
        inserted_at, due_at, rank, batch_id, batch_line, custom_id, input_bytes, cost, chain_length, context_bytes,
        layout, key_id, metadata, started_at, attempt, finished_at, output, error, error_code, log, sent_to)
    SELECT 'resp_' || lpad(to_hex(n + CAST(:first AS int)), 12, '0') || substr(md5(n::text), 1, 28),
        CASE WHEN b.id IS NOT NULL THEN b.project WHEN n % 300000 = 7 THEN 'few' ELSE 'project-' || n / 3 % 5 END,
        'm' || n % 3, 'model.m' || n % 3, CASE WHEN b.id IS NULL THEN 6 ELSE 10 END, s.status, true,
        b.id IS NULL AND n % 2 = 0, true, CAST(:request AS json), s.inserted_at, s.inserted_at, b.due_at,
        CASE WHEN b.id IS NOT NULL THEN 1 END, b.id, CASE WHEN b.id IS NOT NULL THEN n END,
        CASE WHEN b.id IS NOT NULL THEN 'line-' || n END, 0, 100, 1, 0,
        1, CASE WHEN n % 300000 = 9 AND s.at IS NOT NULL THEN 'key_few' ELSE 'key_many' END,
        CASE WHEN n % 300000 = 11 THEN CAST('{"run":"rare"}' AS json)
            WHEN n % 2 = 0 THEN CAST('{"run":"nightly","line":"' || n || '"}' AS json) END,
        s.at, CASE WHEN s.status = 'queued' THEN 0 ELSE 1 END, s.at,
        CASE WHEN s.status <> 'queued' THEN CAST('[]' AS json) END,
        CASE WHEN s.status = 'failed' THEN CAST('{"code":"server_error","message":"x"}' AS json) END,
        CASE WHEN s.status = 'failed' THEN CASE WHEN n % 300000 = 13 THEN 'rare_error' ELSE 'server_error' END END,
        CASE WHEN s.status = 'queued' THEN 'live' ELSE 'deleted' END,
        CASE WHEN s.status <> 'queued' THEN 'worker@host' END
    FROM generate_series(1, CAST(:count AS int)) n CROSS JOIN LATERAL (
        SELECT CASE WHEN CAST(:queued AS boolean) THEN 'queued' WHEN n % 300000 = 13 OR n % 20 = 1 THEN 'failed'
            ELSE 'completed' END AS status,
            CASE WHEN NOT CAST(:queued AS boolean) THEN now() - make_interval(secs => greatest(0, 900000 - :first - n))
                END AS at,
            now() - make_interval(secs => greatest(0, 1000000 - :first - n)) AS inserted_at
    ) s LEFT JOIN batches b ON b.id = CAST(:batch AS text) ORDER BY n
"""
_OPEN = """
    INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)
    SELECT id, 0, 1, 0, false, '', :frames, :size FROM responses WHERE status = 'queued'
"""
_BATCH = """
    INSERT INTO batches (id, project, endpoint, input_file, completion_window, status, created_at, due_at, completed_at)
    VALUES ('batch_1', 'project-2', '/v1/responses', 'file_1', '24h', 'completed',
        now() - make_interval(secs => 1000000 - :first), now(), now())
"""
_PROJECTS = "INSERT INTO projects (id, name, created_at) SELECT id, 'x', now() FROM unnest(CAST(:ids AS text[])) id"
_WAITS = text("SELECT EXISTS (SELECT FROM responses WHERE status = 'queued') AS waits")

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


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is of what is measured."""

    finished: int = 900_000
    queued: int = 100_000
    pages: int = 10
    """Of each list; 0: no list is read, and nothing looked at."""
    lines: int = 50_000
    streams: int = 64
    rate: float = 40.0
    """Tokens a second of each stream; 0: as many as it gets."""
    seconds: float = 15.0
    """How long the streams take."""
    rounds: int = 2


async def fill(owner: Database, first: int, count: int, *, queued: bool, batch: str | None = None) -> None:
    """Adds responses that have ended, or that wait. Postgres has vacuumed those that have ended."""
    new = new_response()
    request = json.dumps(stored_request(), separators=(",", ":"))
    values = {"first": first, "count": count, "queued": queued, "batch": batch, "request": request}
    async with owner.begin(large=True) as connection:
        await connection.execute(text(_FILL), values)
        if queued:
            frames = {"frames": pack_events(new.opening.frames), "size": len(new.opening.frames)}
            await connection.execute(text(_OPEN), frames)
    if not queued:
        await vacuum(owner)


async def vacuum(owner: Database) -> None:
    async with owner.autocommit() as connection:
        await connection.execute(text("VACUUM ANALYZE responses, chunks"))


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
        response = await response_facts.find(db, waiting[0])
        assert response is not None
        await response_facts.surroundings(db, response)

    looks: dict[str, Callable[[], Awaitable[object]]] = {
        "a scrape": lambda: fleet.read(db, RETENTION),
        "status": lambda: overview.read(db, RETENTION, ["model.m0"]),
        "queue by model": lambda: backlog.read(db, "model"),
        "queue by key": lambda: backlog.read(db, "key"),
        "workers": lambda: worker_rows.read(db),
    }
    for name, each in (looks | ({"why": why} if waiting else {})).items():
        times = []
        for _ in range(LOOKS):
            begun = time.perf_counter()
            await each()
            times.append(time.perf_counter() - begun)
        say(f"{name:30} {statistics.median(times) * 1000:6.1f} ms median, {max(times) * 1000:6.1f} ms most")


async def list_all(db: Database, most_pages: int) -> None:
    for name, only in FILTERS.items():
        times, after, found, pages = [], None, 0, 0
        for _ in range(most_pages):
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


async def read_all(db: Database, owner: Database, pages: int) -> None:
    """Lists and looks, with what came last not vacuumed, and then vacuumed."""
    for is_vacuumed in (False, True):
        if is_vacuumed:
            await autovacuumed(owner)
        await list_all(db, pages)
        await look(db)


@asynccontextmanager
async def costs(longhaul: Longhaul, what: str) -> AsyncIterator[None]:
    """Says what the block takes: seconds, CPU by role and WAL."""
    wal, cpu, begun = await longhaul.wal_bytes() or 0, longhaul.cpu(), time.perf_counter()
    yield
    seconds = time.perf_counter() - begun
    used = {role.value: taken - cpu.get(role, 0.0) for role, taken in longhaul.cpu().items()}
    shown = ", ".join(f"{role} {taken:.1f}" for role, taken in used.items() if taken >= 0.05)
    say(f"{what}: {seconds:.1f} s; CPU: {shown}; {((await longhaul.wal_bytes() or 0) - wal) / 1e6:.0f} MB of WAL")


async def cancel_all(longhaul: Longhaul, action_id: str) -> float:
    """Cancels all that wait but streams, and takes no part in it; returns the seconds."""
    only = ResponseFilter(statuses=(Status.QUEUED,), key="key_many")
    async with longhaul.db.begin() as connection:
        await actions.add(connection, NewAction(action_id, ActionKind.CANCEL, only, "bench", None, 0))
    begun = time.perf_counter()

    async def ended() -> ActionRow | None:
        found = await actions.find(longhaul.db, action_id)
        return None if found is None or found.state is ActionState.RUNNING else found

    found = await until(ended, PATIENCE_SECONDS, "the end of the cancel")
    seconds = time.perf_counter() - begun
    say(f"{action_id}: {found.done} cancelled in {seconds:.1f} s")
    return seconds


async def cancel_batch(longhaul: Longhaul, lines: int) -> None:
    """Of a batch whose first lines have ended."""
    load = Load("", Mode.FIRE, 1, lines, {"max_output_tokens": 64, "ignore_eos": True}, SCRIPT, realtime=False)
    async with httpx.AsyncClient(base_url=longhaul.url, timeout=PATIENCE_SECONDS) as client:

        async def found() -> Any:
            return (await client.get(f"/v1/batches/{batch}")).raise_for_status().json()

        async def has_begun() -> bool:
            return bool((await found())["request_counts"]["completed"])

        async def none_waits() -> bool:
            return not (await longhaul.db.execute(_WAITS))[0].waits

        async def is_cancelled() -> bool:
            return bool((await found())["status"] == "cancelled")

        batch = await create(client, batch_file(load))
        await until(has_begun, PATIENCE_SECONDS, "the first lines have ended")
        async with costs(longhaul, f"batch of {lines} lines"):
            begun = time.perf_counter()
            (await client.post(f"/v1/batches/{batch}/cancel")).raise_for_status()
            await until(none_waits, PATIENCE_SECONDS, "no line waits")
            say(f"batch: no line waits after {time.perf_counter() - begun:.1f} s")
            await until(is_cancelled, PATIENCE_SECONDS, "the batch is cancelled")
            say(f"batch: the files are ready after {time.perf_counter() - begun:.1f} s")


async def beside(longhaul: Longhaul, owner: Database, sizes: Sizes) -> None:
    """What streams lose beside a cancel: how much longer all of them take, as a part of the cancel's time."""
    tokens = round(sizes.seconds * (sizes.rate or 40.0))
    body = {"max_output_tokens": tokens, "ignore_eos": True}
    load = Load("", Mode.STREAM, sizes.streams, sizes.streams, body, SCRIPT, realtime=False)
    took: list[float] = []

    @asynccontextmanager
    async def cancelling(number: int) -> AsyncIterator[None]:
        task = asyncio.create_task(cancel_all(longhaul, f"action_{number}"))
        yield
        took.append(await task)

    for number in range(sizes.rounds):
        alone = (await measure_load(longhaul, load)).figures
        await fill(owner, 2_000_000 + number * sizes.queued, sizes.queued, queued=True)
        await vacuum(owner)
        with_cancel = (await measure_load(longhaul, load, cancelling(number))).figures
        lost = (with_cancel.seconds - alone.seconds) / took[-1]
        say(
            f"{sizes.streams} streams: {alone.tokens / alone.seconds:,.0f} tokens/s alone, {alone.seconds:.1f} s;"
            f" beside a cancel {with_cancel.seconds:.1f} s: {100 * lost:.1f} % lost while it goes on"
        )


async def measure(longhaul: Longhaul, sizes: Sizes) -> None:
    await longhaul.start()
    owner = Database(longhaul.services.owner_url, 1, driver_seconds=None)
    async with owner.begin() as connection:
        await connection.execute(text(_PROJECTS), {"ids": list(PROJECTS)})
    begun = time.perf_counter()
    of_batch = sizes.finished // 90
    await fill(owner, 0, sizes.finished - of_batch, queued=False)
    await owner.execute(text(_BATCH), {"first": sizes.finished - of_batch})
    await fill(owner, sizes.finished - of_batch, of_batch, queued=False, batch="batch_1")
    # Once the rest is vacuumed, what comes is not, until the benchmark says so.
    await owner.execute(text("ALTER TABLE responses SET (autovacuum_enabled = off)"))
    await fill(owner, sizes.finished, sizes.queued, queued=True)
    say(f"filled in {time.perf_counter() - begun:.0f} s")
    if sizes.pages:
        await read_all(longhaul.db, owner, sizes.pages)
    await vacuum(owner)
    async with costs(longhaul, f"{sizes.queued} of a filter"):
        await cancel_all(longhaul, "action")
    if sizes.pages:
        await read_all(longhaul.db, owner, sizes.pages)
    await owner.execute(text("ALTER TABLE responses RESET (autovacuum_enabled)"))
    await cancel_batch(longhaul, sizes.lines)
    if sizes.rounds:
        await beside(longhaul, owner, sizes)
    await owner.close()


async def run(sizes: Sizes) -> None:
    with open_folder() as folder:
        longhaul = Longhaul("longhaul", folder, scripted(tokens_per_second=sizes.rate, max_num_seqs=sizes.streams + 2))
        try:
            await measure(longhaul, sizes)
        finally:
            await longhaul.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for each in dataclasses.fields(Sizes):
        parser.add_argument(f"--{each.name}", type=type(each.default), default=each.default)
    asyncio.run(run(Sizes(**vars(parser.parse_args()))))
