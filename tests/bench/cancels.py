"""What bulk cancels take with a million responses: `make bench-bulk`.

Longhaul runs as in production, on the scripted engine. 900,000 responses have ended, 100,000 wait. Maintenance cancels
all that wait, then a batch of 50,000 lines, and then once more so many as at first, beside streams.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import Database
from app.store.operations import actions
from app.store.operations.actions import ActionKind, ActionRow, ActionState, NewAction
from app.store.operations.filters import ResponseFilter
from app.store.packing import pack_events
from tests.bench.bulk import OPEN, say
from tests.bench.contenders.longhaul import Longhaul
from tests.bench.contenders.models import scripted
from tests.bench.load import Load, Mode
from tests.bench.measurement import measure_load
from tests.bench.prompts import SCRIPT
from tests.support.requests import stored_request
from tests.support.rows import new_response
from tests.support.services import open_folder
from tests.support.waiting import until

PATIENCE_SECONDS = 120.0


_FILL = """
    INSERT INTO responses (id, project, model, queue, priority, status, background, stream, store, request, created_at,
        inserted_at, due_at, rank, batch_id, batch_line, custom_id, input_bytes,
        cost, chain_length, context_bytes, layout, key_id, metadata, started_at, attempt,
        finished_at, output, error, error_code, usage, log)
    SELECT 'resp_' || lpad(to_hex(n + CAST(:first AS int)), 12, '0') || substr(md5(n::text), 1, 28),
        CASE WHEN b.id IS NOT NULL THEN 'default' WHEN n % 300000 = 7 THEN 'few' WHEN n % 3 = 0 THEN 'project-b'
            ELSE 'project-a' END,
        'scripted', 'model.scripted', CASE WHEN b.id IS NULL THEN 6 ELSE 10 END, s.status, true,
        b.id IS NULL AND n % 2 = 0, true, CAST(:request AS json), s.inserted_at, s.inserted_at, b.due_at,
        CASE WHEN b.id IS NOT NULL THEN 1 END, b.id, CASE WHEN b.id IS NOT NULL THEN n END,
        CASE WHEN b.id IS NOT NULL THEN 'line-' || n END,
        0, 100, 1, 0, 1, CASE WHEN n % 300000 = 9 THEN 'key_few' ELSE 'key_many' END,
        CASE WHEN n % 300000 = 11 THEN CAST('{"run":"rare"}' AS json)
            WHEN n % 2 = 0 THEN CAST('{"run":"nightly","line":"' || n || '"}' AS json) END,
        s.at, CASE WHEN s.status = 'queued' THEN 0 ELSE 1 END, s.at,
        CASE WHEN s.status <> 'queued' THEN CAST('[]' AS json) END,
        CASE WHEN s.status = 'failed' THEN CAST('{"code":"server_error","message":"x"}' AS json) END,
        CASE WHEN s.status = 'failed' THEN CASE WHEN n % 300000 = 13 THEN 'rare_error' ELSE 'server_error' END END,
        NULL, CASE WHEN s.status = 'queued' THEN 'live' ELSE 'deleted' END
    FROM generate_series(1, CAST(:count AS int)) n CROSS JOIN LATERAL (
        SELECT CASE WHEN CAST(:queued AS boolean) THEN 'queued' WHEN n % 300000 = 13 OR n % 20 = 1 THEN 'failed'
            ELSE 'completed' END AS status,
            CASE WHEN NOT CAST(:queued AS boolean) THEN now() END AS at,
            now() - make_interval(secs => greatest(0, 1000000 - :first - n)) AS inserted_at
    ) s LEFT JOIN batches b ON b.id = CAST(:batch AS text) ORDER BY n
"""
_BATCH = """
    INSERT INTO batches (id, project, endpoint, input_file, completion_window, status, total, expanded, expanded_bytes,
        created_at, due_at, in_progress_at)
    VALUES ('batch_1', 'default', '/v1/responses', 'file_1', '24h', 'in_progress', :lines, :lines, 1, now(),
        now() + interval '1 day', now())
"""
_WAITS = text("SELECT EXISTS (SELECT FROM responses WHERE status = 'queued') AS waits")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is of what is measured."""

    finished: int = 900_000
    queued: int = 100_000
    lines: int = 50_000
    streams: int = 64
    rate: float = 40.0
    """Tokens a second of each stream; 0: as many as it gets."""
    seconds: float = 15.0
    """How long the streams take."""
    rounds: int = 2


async def fill(owner: Database, first: int, count: int, *, queued: bool, batch: str | None = None) -> None:
    new = new_response()
    request = json.dumps(stored_request(), separators=(",", ":"))
    values = {"first": first, "count": count, "queued": queued, "batch": batch, "request": request}
    async with owner.begin(large=True) as connection:
        await connection.execute(text(_FILL), values)
        if queued:
            frames = {"frames": pack_events(new.opening.frames), "size": len(new.opening.frames)}
            await connection.execute(text(OPEN), frames)
    async with owner.autocommit() as connection:
        await connection.execute(text("VACUUM ANALYZE responses, chunks"))


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
    """Cancels all that wait, and takes no part in it; returns the seconds."""
    only = ResponseFilter(statuses=(Status.QUEUED,), model="scripted")
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


async def cancel_batch(longhaul: Longhaul, owner: Database, first: int, lines: int) -> None:
    async with owner.begin() as connection:
        await connection.execute(text(_BATCH), {"lines": lines})
    await fill(owner, first, lines, queued=True, batch="batch_1")
    async with httpx.AsyncClient(base_url=longhaul.url) as client, costs(longhaul, f"batch of {lines} lines"):
        begun = time.perf_counter()

        async def none_waits() -> bool:
            return not (await longhaul.db.execute(_WAITS))[0].waits

        async def is_cancelled() -> bool:
            batch = (await client.get("/v1/batches/batch_1")).raise_for_status().json()
            return bool(batch["status"] == "cancelled")

        (await client.post("/v1/batches/batch_1/cancel")).raise_for_status()
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
        for project in ("project-a", "project-b", "few"):
            await connection.execute(
                text(f"INSERT INTO projects (id, name, created_at) VALUES ('{project}', 'x', now())")
            )
    begun = time.perf_counter()
    await fill(owner, 0, sizes.finished, queued=False)
    await fill(owner, sizes.finished, sizes.queued, queued=True)
    say(f"filled in {time.perf_counter() - begun:.0f} s")
    async with costs(longhaul, f"{sizes.queued} of a filter"):
        await cancel_all(longhaul, "action")
    await cancel_batch(longhaul, owner, sizes.finished + sizes.queued, sizes.lines)
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
