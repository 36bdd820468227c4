"""Work in windows on a real Postgres: how far it rises, its deadlines, and what goes together.

The order: test_dispatch_model.py, and tests/unit/scheduling.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from asyncpg import CheckViolationError

from app.protocol.status import Status
from app.queue.message import Priority
from app.scheduling.loads import NOTHING_AHEAD
from app.store.database import Database
from app.store.queue import dispatch, windows
from app.store.queue.dispatch import FlowCorrection, QueueFlow
from app.store.responses import claims, endings
from app.store.responses.endings import Overdue
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import NewResponse
from app.store.roles.rights import MAINTENANCE
from tests.integration.store.common import sql
from tests.support.roles import as_role
from tests.support.rows import WORKER, alive, claim, new_response
from tests.support.waiting_rows import QUEUE, drain, end, sent, waiting, weigh, with_slots

HOUR = 3600.0
WINDOW = Priority.WINDOW
OF_A = QueueFlow(QUEUE, "a", WINDOW)


async def part_of_a(db: Database) -> float:
    rows = await sql(db, "SELECT part FROM flows WHERE project = 'a' AND priority = 10")
    return rows[0].part if rows else 0.0


async def measured(db: Database, seconds: float, tokens: int, project: str = "a", of: Priority = WINDOW) -> None:
    """Responses of a project took so much, on the mean; a dispatch has noted it."""
    await waiting(db, "first", 1)
    correction = FlowCorrection(64, 64 * tokens, 64 * tokens, 64 * tokens, 64 * seconds)
    flow = QueueFlow(QUEUE, project, of)
    assert await dispatch.dispatch(db, QUEUE, NOTHING_AHEAD, {flow: correction})
    await end(db, [row.id for row in await sql(db, "SELECT id FROM responses WHERE project = 'first'")])
    await sql(db, "DELETE FROM flows WHERE project = 'first'")


# How far it rises


async def test_lines_that_are_in_their_file_count_with_those_that_are_responses(db: Database) -> None:
    """200 lines, of which 50 are responses."""
    await weigh(db, "a", 1.0)
    await with_slots(db, 10)
    await windows.raise_to(db, {OF_A: 0.0})
    await measured(db, 10.0, 100)
    ids = await waiting(db, "a", 50, window=1.3 * HOUR, cost=1000)
    await windows.raise_all(as_role(db, MAINTENANCE))
    assert await part_of_a(db) == 0.0
    of_batch = "batch_id = 'b', custom_id = id, batch_line = 100 + CAST(split_part(id, '-', 2) AS int)"
    await sql(db, f"UPDATE responses SET {of_batch} WHERE id = ANY(:ids)", ids=ids)
    batch = (
        "INSERT INTO batches (id, project, endpoint, input_file, completion_window, status, total, expanded,"
        " numbered, created_at, due_at)"
        " VALUES ('b', 'a', '/v1/responses', 'f', '2h', 'in_progress', 300, 150, 100, now(), now())"
    )
    await sql(db, batch)
    await windows.raise_all(as_role(db, MAINTENANCE))
    assert 0.5 < await part_of_a(db) < 1.0


async def test_until_its_own_are_measured_those_of_other_flows_tell_the_speed(db: Database) -> None:
    await with_slots(db, 10)
    await waiting(db, "b", 1)
    await sent(db)
    await measured(db, 50.0, 5, "b", Priority.BACKGROUND)
    await waiting(db, "a", 100, window=2 * HOUR, cost=1000)
    await windows.raise_all(as_role(db, MAINTENANCE))
    assert await part_of_a(db) == 1.0, "0.1 tokens a second"


async def test_a_rise_and_a_dispatch_wait_for_each_other(db: Database) -> None:
    await with_slots(db, 40)
    for project in "abcd":
        await waiting(db, project, 30, window=2 * HOUR)

    async def rise() -> None:
        for number in range(20):
            flows = {QueueFlow(QUEUE, each, Priority.WINDOW): number / 20 for each in "dcba"}
            await windows.raise_to(db, flows)

    taken, _ = await asyncio.gather(drain(db, 120), rise())
    assert len(taken) == 120


# The end of a window


def in_window(seconds: float, **request: Any) -> NewResponse:
    return replace(new_response(**request), priority=WINDOW.value, window_seconds=seconds)


async def test_what_misses_its_window_is_not_claimed_and_found_overdue_in_every_status(db: Database) -> None:
    waits, runs, yielded = (in_window(0.5) for _ in range(3))
    inserter = Inserter(db)
    for each in (runs, yielded, waits):
        await inserter.create(each)
    await alive(db)
    for each in (runs, yielded):
        assert await claim(db, each.id, WORKER) is not None
    assert await claims.yield_(db, yielded.id, 1, WORKER)
    assert await endings.find_overdue(db) == []
    await sql(db, "UPDATE responses SET due_at = now() - interval '1 second'")
    assert await claim(db, waits.id, WORKER) is None
    found = {each.id: each for each in await endings.find_overdue(db)}
    assert found == {
        waits.id: Overdue(waits.id, Status.QUEUED, is_due=True, ends_at_once=True),
        runs.id: Overdue(runs.id, Status.IN_PROGRESS, is_due=True),
        yielded.id: Overdue(yielded.id, Status.IN_PROGRESS, is_due=True),
    }


async def test_work_in_windows_has_a_deadline_and_nothing_else_has(db: Database) -> None:
    for wrong in (replace(new_response(), window_seconds=5.0), replace(new_response(), priority=WINDOW.value)):
        with pytest.raises(CheckViolationError, match="due_in_window"):
            await Inserter(db).create(wrong)


# Continuations


async def inserted(db: Database, *made: NewResponse) -> list[str]:
    """Inserts them one after the other."""
    inserter = Inserter(db)
    for each in made:
        await inserter.create(each)
    return [each.id for each in made]


@pytest.mark.parametrize("window", [None, 2 * HOUR], ids=["soonest", "2h"])
async def test_what_continues_goes_ahead_of_strangers_once_the_first_has_begun(
    db: Database, window: float | None
) -> None:
    def new(continuation: str | None = None) -> NewResponse:
        made = new_response(continuation_id=continuation)
        return made if window is None else replace(made, priority=WINDOW.value, window_seconds=window)

    stranger, head, between, second, after = await inserted(db, new(), new("c"), new(), new("c"), new())
    await with_slots(db, 2)
    assert await sent(db) == [stranger, head], "the head does not pass those before it"
    await end(db, [stranger, head])
    (third,) = await inserted(db, new("c"))
    assert await drain(db, 4) == [second, third, between, after]


async def test_a_continuation_belongs_to_its_project_and_class(db: Database) -> None:
    await waiting(db, "default")
    head = new_response(continuation_id="c")
    other = new_response(project="b", continuation_id="c")
    flex = replace(new_response(continuation_id="c"), priority=Priority.FLEX.value)
    await inserted(db, head, other, flex)
    rows = await sql(db, "SELECT rank, heads FROM responses WHERE heads IS NOT NULL")
    assert [(row.rank, row.heads) for row in rows] == [(None, "c")] * 3


async def test_an_old_head_is_followed_no_more(db: Database) -> None:
    await waiting(db, "default")
    (head,) = await inserted(db, new_response(continuation_id="c"))
    old = "UPDATE responses SET inserted_at = inserted_at - interval '3 hours' WHERE id = :id"
    await sql(db, old, id=head)
    (between, again) = await inserted(db, new_response(), new_response(continuation_id="c"))
    await with_slots(db, 8)
    assert (await sent(db))[-3:] == [head, between, again]


async def test_a_deadline_is_never_put_off_by_a_head_with_more_time(db: Database) -> None:
    head, soon = in_window(8 * HOUR, continuation_id="c"), in_window(2 * HOUR, continuation_id="c")
    await inserted(db, head, soon)
    rows = await sql(db, "SELECT id FROM responses ORDER BY rank")
    assert [row.id for row in rows] == [soon.id, head.id]
