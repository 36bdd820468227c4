"""What operators read costs as much as what is unfinished, and not as much as what is stored."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import Database
from app.store.operations import casualties, listing
from app.store.operations.filters import ResponseFilter, window
from app.store.queue import backlog, fleet, pace, response_facts, shown, signs, worker_rows
from tests.support.waiting_rows import QUEUE, waiting, with_slots

ENDED = text(
    """
    INSERT INTO responses (id, project, model, queue, priority, status, background, stream, store, request, created_at,
        input_bytes, cost, chain_length, context_bytes, layout, finished_at, output, started_at, attempt, log)
    SELECT 'ended-' || n, 'p' || n % 20, 'scripted', 'model.scripted', 6, 'completed', true, false, true, '{}', now(),
        0, 100, 1, 0, 1, now(), '[]', now(), 1, CASE WHEN n % 2 = 0 THEN 'merged' ELSE 'deleted' END
    FROM generate_series(1, :count) n
    """
)
LINE = {"most": 2000, "least_of_flow": 8, "most_of_flow": 1000, "queue": QUEUE}
READS: dict[str, tuple[Any, dict[str, Any]]] = {
    "by flow": (backlog._BY_FLOW, {}),
    "by key": (backlog._BY_KEY, {}),
    "pace": (pace._PACE, {"seconds": 300.0, "most": 1, "most_read": 10}),
    "deaths": (casualties._DEATHS, {"seconds": 600.0, "most_ended": 10}),
    "suspects": (casualties._SUSPECTS, {}),
    "workers": (worker_rows._WORKERS, {}),
    "living workers": (fleet._WORKERS, {}),
    "shown": (shown._UNFINISHED, {"most": 10_000}),
    "signs": (signs._SIGNS, {}),
    "line": (response_facts._FLOWS, LINE),
    "before": (
        response_facts._BEFORE,
        {"queue": QUEUE, "project": "p4", "priority": 6, "late": 0, "rank": 70, "position": 70},
    ),
    "row": (response_facts._ROW, {"id": "ended-77"}),
    "scrape": (fleet._RESPONSES, {"retention": 3600.0}),
}
VACUUM = text("VACUUM ANALYZE responses")


async def plan_of(db: Database, statement: Any, values: dict[str, Any]) -> str:
    async with db.begin() as connection:
        await fleet.follow_indexes(connection)
        explained = text(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {statement.text}")
        return "\n".join((await connection.execute(explained, values)).scalars())


def pages(plan: str) -> int:
    """The pages that the statement touched: those of its root node, which stand first."""
    line = next(line for line in plan.splitlines() if "Buffers: shared" in line)
    return sum(int(part.partition("=")[2]) for part in line.split() if part.startswith(("hit=", "read=")))


@pytest.mark.parametrize("name", READS)
async def test_a_look_reads_what_is_unfinished_and_no_more(db: Database, name: str) -> None:
    statement, values = READS[name]
    async with db.begin(large=True) as connection:
        await connection.execute(ENDED, {"count": 5_000})
    async with db.autocommit() as connection:
        await connection.execute(VACUUM)  # the statistics know of nothing that waits
    await with_slots(db, 4)
    for number in range(5):
        await waiting(db, f"p{number}", 20)
    plan = await plan_of(db, statement, values)
    assert "Seq Scan on responses" not in plan
    assert "responses_status_idx" not in plan  # it has all that is queued
    assert pages(plan) < 700, plan


@pytest.mark.parametrize("is_analyzed", [True, False])
async def test_a_list_of_a_batch_reads_its_lines_and_no_more(db: Database, is_analyzed: bool) -> None:
    async with db.begin(large=True) as connection:
        await connection.execute(ENDED, {"count": 20_000})
        lines = (
            "UPDATE responses SET batch_id = 'batch_' || substr(id, 7)::int % 100, batch_line = substr(id, 7)::int,"
            " custom_id = id WHERE substr(id, 7)::int % 2 = 0"
        )
        await connection.execute(text(lines))
    if is_analyzed:
        async with db.autocommit() as connection:
            await connection.execute(VACUUM)
    wanted = window(ResponseFilter(batch="batch_2"), Status, 2048, None, descending=True)
    async with db.begin() as connection:
        await connection.execute(listing._BY_INDEX)
        explained = text(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {wanted.text}")
        plan = "\n".join((await connection.execute(explained, dict(wanted.values))).scalars())
    assert "Seq Scan on responses" not in plan
    assert sum(map(float, re.findall(r"using responses_\w+ on .* rows=([\d.]+)", plan))) == 200, plan


@pytest.mark.parametrize("name", ("by flow", "by key", "line", "before", "scrape"))
async def test_what_waits_is_counted_from_an_index_alone(db: Database, name: str) -> None:
    await waiting(db, "p4", 20)
    async with db.autocommit() as connection:
        await connection.execute(VACUUM)
    assert "Index Only Scan using responses_waiting_idx" in await plan_of(db, *READS[name])


async def test_the_pace_looks_back_as_far_as_it_reads_past_what_ended_without_a_worker(db: Database) -> None:
    async with db.begin() as connection:
        await connection.execute(ENDED, {"count": 51})
        ran = "UPDATE responses SET sent_to = 'w', started_at = :began, finished_at = :at WHERE id = :id"
        for number, seconds in enumerate((200, 100, 0), start=1):
            at = datetime.now(UTC) - timedelta(seconds=seconds)
            began = at - timedelta(hours=1)
            await connection.execute(text(ran), {"at": at, "began": began, "id": f"ended-{number}"})
        for most_read, ended, seconds in ((50, 2, 200), (1_000, 3, 300)):
            values = {"seconds": 300.0, "most": 1_000, "most_read": most_read}
            found = (await connection.execute(pace._PACE, values)).all()
            assert sum(row.ended for row in found) == ended
            assert seconds - 1 <= found[0].seconds < seconds + 60
