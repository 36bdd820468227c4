"""What operators read costs as much as what is unfinished, and not as much as what is stored."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from app.store.database import Database
from app.store.queue import backlog, fleet, pace, roster, shown, signs, standing
from tests.integration.store.test_fleet import ENDED, pages
from tests.support.waiting_rows import QUEUE, waiting, with_slots

LINE = {"most": 2000, "least_of_flow": 8, "most_of_flow": 1000, "queue": QUEUE}
READS: dict[str, tuple[Any, dict[str, Any]]] = {
    "by flow": (backlog._BY_FLOW, {}),
    "by key": (backlog._BY_KEY, {}),
    "pace": (pace._PACE, {"seconds": 300.0, "most": 1, "most_read": 10}),
    "workers": (roster._WORKERS, {}),
    "living workers": (fleet._WORKERS, {}),
    "shown": (shown._UNFINISHED, {"most": 10_000}),
    "signs": (signs._SIGNS, {}),
    "line": (standing._FLOWS, LINE),
    "before": (
        standing._BEFORE,
        {"queue": QUEUE, "project": "p4", "priority": 6, "late": 0, "rank": 70, "position": 70},
    ),
    "row": (standing._ROW, {"id": "ended-77"}),
}


@pytest.mark.parametrize("name", READS)
async def test_a_look_reads_what_is_unfinished_and_no_more(db: Database, name: str) -> None:
    statement, values = READS[name]
    async with db.begin(large=True) as connection:
        await connection.execute(ENDED, {"count": 5_000})
    await with_slots(db, 4)
    for number in range(5):
        await waiting(db, f"p{number}", 20)
    async with db.begin() as connection:
        await fleet.follow_indexes(connection)
        explained = text(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {statement.text}")
        plan = "\n".join((await connection.execute(explained, values)).scalars())
    assert "Seq Scan on responses" not in plan
    assert pages(plan) < 700, plan
