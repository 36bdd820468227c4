"""Bulk actions: steps that maintenance carries out, whatever dies, races or overlaps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.protocol.limits import LimitKind
from app.protocol.status import BatchStatus, Status
from app.queue.message import Priority
from app.responses.create.retried import retried
from app.store.batches import changes as batch_changes
from app.store.batches import rows as batches
from app.store.columns import to_json
from app.store.database import Database
from app.store.operations import actions, cancels, listing, retries
from app.store.operations.actions import ActionKind, ActionRow, ActionState, Step
from app.store.operations.filters import ResponseFilter
from app.store.paging import Page
from app.store.responses import claims, endings
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import insert_waiting
from app.store.roles.rights import MAINTENANCE
from app.store.rows import Notice
from app.store.tenants import limits
from app.store.tenants.limits import LimitRow
from tests.integration.store.common import answered, begun, blocked, held, scalar, sql
from tests.support.bulk import action_of, check_cancelled, many_queued, started, statuses
from tests.support.celery_processes import ForkedProcess
from tests.support.logs import events_of, row_of, text_of
from tests.support.roles import as_role
from tests.support.rows import WORKER, alive, living, new_batch, new_line, new_response, queued
from tests.support.waiting import until
from tests.support.waiting_rows import take

QUEUED = ResponseFilter(status=(Status.QUEUED,))
STEP = 50


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancels, "STEP_ROWS", STEP)
    monkeypatch.setattr(retries, "STEP_ROWS", STEP)


def steps(db: Database, seen: ActionRow) -> AsyncGenerator[Step]:
    made = partial(retried, reserved_tokens=64)
    return cancels.steps(db, seen) if seen.kind is ActionKind.CANCEL else retries.steps(db, seen, made)


async def carried_out(db: Database, action: ActionRow) -> tuple[ActionRow, list[Notice]]:
    """Goes on with an action to its end, pass after pass, with the rights that maintenance has."""
    told: list[Notice] = []
    own = as_role(db, MAINTENANCE)
    while (seen := await action_of(db, action.id)).state is ActionState.RUNNING:
        async for step in steps(own, seen):
            told += step.ended
    return seen, told


async def test_what_runs_and_what_has_secrets_is_cancelled_beside_what_waits(db: Database) -> None:
    waiting = await many_queued(db, 5)
    speaking, silent = (await begun(db, "so far")).row.id, await many_queued(db, 40)
    async with living(db, WORKER):
        await claims.claim_all(db, [(each, WORKER) for each in silent])
    secret = await queued(db, secrets={"mcp": "sealed"})
    action, told = await carried_out(db, await started(db, ActionKind.CANCEL, ResponseFilter()))
    assert action.done == 47
    assert {notice.response_id for notice in told if notice.was_sent} == {speaking, *silent}
    await check_cancelled(db, [*waiting, secret, *silent])
    assert text_of(await row_of(db, speaking)) == "so far"
    assert (await row_of(db, secret)).request["secrets"] == {}


async def test_what_does_not_match_and_what_comes_later_is_left(db: Database) -> None:
    await many_queued(db, 3, metadata={"run": "a"})
    others = await many_queued(db, 3, metadata={"run": "b"})
    action = await started(db, ActionKind.CANCEL, ResponseFilter(metadata=(("run", "a"),)))
    later = await many_queued(db, 2, metadata={"run": "a"})
    action, _ = await carried_out(db, action)
    assert action.done == 3
    assert {row.id for row in await sql(db, "SELECT id FROM responses WHERE status = 'queued'")} == {*others, *later}


async def test_what_another_transaction_holds_is_cancelled_by_another_pass(db: Database) -> None:
    ids = await many_queued(db, 3)
    action = await started(db, ActionKind.CANCEL, QUEUED)
    async with held(db, ids[1]):
        async for _ in cancels.steps(db, action):
            pass
        seen = await action_of(db, action.id)
        assert (seen.done, seen.state) == (2, ActionState.RUNNING)
    action, _ = await carried_out(db, action)
    assert (action.done, action.state) == (3, ActionState.COMPLETED)
    await check_cancelled(db, ids)


async def test_a_response_that_was_claimed_meanwhile_is_cancelled_too(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await many_queued(db, 2)
    action, lock = await started(db, ActionKind.CANCEL, ResponseFilter()), actions.lock

    async def lock_late(connection: Any, seen: ActionRow) -> bool:
        monkeypatch.setattr(actions, "lock", lock)
        await take(db, [first])
        return await lock(connection, seen)

    monkeypatch.setattr(actions, "lock", lock_late)
    action, _ = await carried_out(db, action)
    assert action.done == 2
    await check_cancelled(db, [first, second])


async def test_actions_that_overlap_and_processes_that_carry_out_the_same_one_cancel_each_response_once(
    db: Database,
) -> None:
    ids = await many_queued(db, 120)
    both = [await started(db, ActionKind.CANCEL, QUEUED) for _ in range(2)]
    told = [notices for _, notices in await asyncio.gather(*(carried_out(db, each) for each in (*both, both[0])))]
    assert sum([(await action_of(db, each.id)).done for each in both]) == 120
    assert sorted(notice.response_id for notices in told for notice in notices) == sorted(ids)
    await check_cancelled(db, ids)


async def test_an_action_that_was_stopped_does_no_more(db: Database) -> None:
    await many_queued(db, 120)
    action = await started(db, ActionKind.CANCEL, QUEUED)
    async for step in cancels.steps(db, action):
        async with db.begin() as connection:
            assert await actions.cancel(connection, action.id)
        assert step.action.done == STEP
    assert (await action_of(db, action.id)).state is ActionState.CANCELLED
    assert await statuses(db) == {"cancelled": STEP, "queued": 120 - STEP}
    async with db.begin() as connection:
        assert not await actions.cancel(connection, action.id)


class Died(Exception): ...


@pytest.mark.parametrize("kind", list(ActionKind))
@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_process_that_dies_in_a_step_loses_and_doubles_nothing(
    db: Database, monkeypatch: pytest.MonkeyPatch, kind: ActionKind, is_committed: bool
) -> None:
    """Postgres undoes the transaction of a process that died; what was committed before, nobody has told of."""
    ids = await many_queued(db, 120)
    if kind is ActionKind.RETRY:
        await carried_out(db, await started(db, ActionKind.CANCEL, QUEUED))
    only = QUEUED if kind is ActionKind.CANCEL else ResponseFilter(status=(Status.CANCELLED,))
    action = await started(db, kind, only)
    note, noted = actions.note, 0

    async def dying(*arguments: Any) -> ActionRow:
        nonlocal noted
        noted += 1
        row = await note(*arguments)
        if noted == 2 and not is_committed:
            raise Died
        return row

    monkeypatch.setattr(actions, "note", dying)
    with pytest.raises(Died):
        async for _ in steps(db, action):
            if noted == 2:
                raise Died
    monkeypatch.undo()
    assert (await action_of(db, action.id)).done == (2 * STEP if is_committed else STEP)
    action, _ = await carried_out(db, action)
    assert action.done == 120
    if kind is ActionKind.CANCEL:
        await check_cancelled(db, ids)
    else:
        rows = await sql(db, "SELECT retry_of FROM responses WHERE status = 'queued'")
        assert sorted(row.retry_of for row in rows) == sorted(ids)


async def test_an_action_with_a_filter_of_another_version_fails_and_stops_no_other(db: Database) -> None:
    strange = [await started(db, ActionKind.CANCEL, QUEUED, 3) for _ in range(2)]
    good = await started(db, ActionKind.CANCEL, QUEUED)
    for action, said in zip(strange, ({"color": "red"}, {"statuses": ["frozen"]}), strict=True):
        changed = "UPDATE bulk_actions SET filter = CAST(:filter AS json), done = 1 WHERE id = :id"
        await sql(db, changed, id=action.id, filter=to_json(said))
    assert [each.id for each in await actions.running(as_role(db, MAINTENANCE))] == [good.id]
    listed, _ = await actions.find_page(db, Page(10))
    assert [(each.state, each.refused) for each in listed] == [
        *[(ActionState.FAILED, {actions.UNREADABLE_FILTER: 2})] * 2,
        (ActionState.RUNNING, {}),
    ]
    assert listed[0].filter == {"color": "red"}


# -- batches -----------------------------------------------------------------------------------------------------------


async def batch(db: Database, batch_id: str, key: str | None = None, model: str | None = None, age: int = 60) -> None:
    """A batch of 20 lines, of which 6 were made responses."""
    await new_batch(db, batch_id, lines=20, key_id=key, model=model)
    async with db.begin() as connection:
        await batch_changes.advance(connection, batch_id, 6, 100)
    older = "UPDATE batches SET created_at = created_at - make_interval(secs => :age) WHERE id = :id"
    await sql(db, older, id=batch_id, age=age)


async def batch_statuses(db: Database) -> dict[str, str]:
    return {row.id: row.status for row in await sql(db, "SELECT id, status FROM batches")}


HALF_AN_HOUR_AGO = datetime.now(UTC) - timedelta(minutes=30)
CANCELLED = {
    ResponseFilter(): {"all", "new", "keyed", "several"},
    ResponseFilter(project="default"): {"all", "new", "keyed", "several"},
    ResponseFilter(project="other"): set(),
    ResponseFilter(model="m"): {"all", "new"},
    ResponseFilter(key="key_1"): {"keyed"},
    ResponseFilter(batch="several"): {"several"},
    ResponseFilter(created_after=HALF_AN_HOUR_AGO): {"new", "keyed", "several"},
    ResponseFilter(created_before=HALF_AN_HOUR_AGO): {"all"},
    ResponseFilter(created_before=datetime.now(UTC) + timedelta(days=1)): {"all", "new", "keyed", "several"},
    ResponseFilter(status=(Status.IN_PROGRESS,)): set(),
    ResponseFilter(service_tier="default"): set(),
    ResponseFilter(model="m", metadata=(("run", "a"),)): set(),
}


async def test_a_cancel_of_whole_batches_ends_those_that_match_and_came_before_it(db: Database) -> None:
    await batch(db, "all", model="m", age=3600)
    await batch(db, "new", model="m")
    await batch(db, "keyed", key="key_1", model="n")
    await batch(db, "several")
    await batch(db, "ended", model="m")
    async with db.begin() as connection:
        assert await batch_changes.move(connection, "ended", BatchStatus.FINALIZING)
    for only, cancelled in CANCELLED.items():
        assert await cancels.count_batches(db, only) == cancels.BatchCount(len(cancelled), 14 * len(cancelled)), only
        action = await started(db, ActionKind.CANCEL, only)
        await batch(db, "later", key="key_1", model="m", age=0)
        results = await asyncio.gather(*(carried_out(db, action) for _ in range(2)))
        assert {action.batches for action, _ in results} == {len(cancelled)}, only
        ended = {name for name, status in (await batch_statuses(db)).items() if status == "cancelling"}
        assert ended == cancelled, only
        await sql(db, "DELETE FROM batches WHERE id = 'later'")
        await sql(db, "UPDATE batches SET status = 'in_progress' WHERE status = 'cancelling'")


async def test_a_retry_leaves_batches_as_they_are(db: Database) -> None:
    await batch(db, "all")
    action, _ = await carried_out(db, await started(db, ActionKind.RETRY, ResponseFilter()))
    assert (action.batches, await batch_statuses(db)) == (0, {"all": "in_progress"})


async def test_lines_that_become_responses_while_a_cancel_is_accepted_are_cancelled_by_it(db: Database) -> None:
    await batch(db, "all")
    lines = [new_line("all", number, background=True) for number in (7, 8, 9)]
    async with db.begin() as expanding:
        await batches.lock(expanding, "all")
        accepting = asyncio.create_task(started(db, ActionKind.CANCEL, QUEUED))
        await blocked(db)
        await insert_waiting(expanding, lines)
        await batch_changes.advance(expanding, "all", 9, 200)
    action, _ = await carried_out(db, await accepting)
    assert action.done == 3
    await check_cancelled(db, [each.id for each in lines])


async def test_a_cancel_of_what_waits_ends_no_batch_but_those_of_which_nothing_can_run(db: Database) -> None:
    await batch(db, "runs")
    await new_batch(db, "unread")
    assert await cancels.count_batches(db, QUEUED) == cancels.BatchCount(1, 14)
    action = await started(db, ActionKind.CANCEL, QUEUED)
    await batch(db, "later")
    assert (action.batches, await batch_statuses(db)) == (
        1,
        {"runs": "in_progress", "unread": "cancelling", "later": "in_progress"},
    )
    assert await scalar(db, "SELECT id FROM batches WHERE lines_cancelled_at IS NOT NULL") == "runs"


# -- retries -----------------------------------------------------------------------------------------------------------


async def failed(db: Database, **request: Any) -> str:
    response_id = await queued(db, **request)
    await endings.fail(db, response_id, "server_error", "broken")
    return response_id


async def both_of(db: Database, old: str) -> tuple[Any, Any]:
    """The row of a response, and that of its only retry."""
    (row,) = await sql(db, "SELECT * FROM responses WHERE id = :id", id=old)
    (new,) = await sql(db, "SELECT * FROM responses WHERE retry_of = :id", id=old)
    return row, new


async def test_a_failed_response_gets_a_new_one_in_the_background_with_its_request_and_what_it_continued(
    db: Database,
) -> None:
    first = (await answered(db, "one")).row
    more = {"metadata": {"run": "a"}, "input": "What?", "background": False, "stream": True}
    old = await failed(db, previous_response_id=first.id, **more)
    action, _ = await carried_out(db, await started(db, ActionKind.RETRY, ResponseFilter()))
    assert (action.done, dict(action.refused)) == (1, {})
    before, new = await both_of(db, old)
    assert before.status == "failed"
    assert (new.status, new.metadata, new.background, new.priority) == ("queued", {"run": "a"}, True, 6)
    assert new.request["input"] == before.request["input"] and new.previous_response_id == first.id
    assert (new.chain_length, new.context_bytes) == (before.chain_length, before.context_bytes)
    opening = await events_of(db, new.id)
    assert [event["type"] for event in opening] == ["response.created", "response.queued"]
    assert opening[0]["response"]["id"] == new.id
    assert new.sent_at is None


async def test_a_response_is_retried_once_and_its_retry_again(db: Database) -> None:
    old = await failed(db)
    both = [await started(db, ActionKind.RETRY, ResponseFilter()) for _ in range(2)]
    ended = [action for action, _ in await asyncio.gather(*(carried_out(db, each) for each in both))]
    assert sorted(action.done for action in ended) == [0, 1]
    refused: dict[str, int] = {}
    for action in ended:
        refused |= action.refused
    assert refused == {"already_retried": 1}
    _, new = await both_of(db, old)
    await endings.fail(db, new.id, "server_error", "broken")
    action, _ = await carried_out(db, await started(db, ActionKind.RETRY, ResponseFilter()))
    assert (action.done, dict(action.refused)) == (1, {"already_retried": 1})


async def test_what_cannot_be_retried_is_counted_by_its_reason(db: Database) -> None:
    await endings.cancel(db, await queued(db), None)  # nobody asked to retry what was cancelled
    await failed(db, store=False)
    await failed(db, task="compact")
    await failed(db)
    damaged = await failed(db)
    await sql(db, "UPDATE responses SET request = '[]' WHERE id = :id", id=damaged)
    action, _ = await carried_out(db, await started(db, ActionKind.RETRY, ResponseFilter()))
    assert (action.done, dict(action.refused)) == (1, {"not_stored": 1, "not_an_answer": 1, "no_request": 1})


_RETRY = "SELECT *, extract(epoch FROM due_at - inserted_at) AS seconds FROM responses WHERE retry_of IS NOT NULL"


async def test_a_retry_of_work_in_a_window_has_the_window_anew_and_goes_with_its_continuation(db: Database) -> None:
    made = new_response(background=True, continuation_id="agent-7")
    hours = 2 * 3600
    await Inserter(db).create(replace(made, priority=Priority.WINDOW.value, window_seconds=hours))
    ago = "interval '3 hours'"
    await sql(db, f"UPDATE responses SET inserted_at = inserted_at - {ago}, due_at = due_at - {ago}")
    await endings.fail(db, made.id, "completion_window_expired", "too late")
    await carried_out(db, await started(db, ActionKind.RETRY, ResponseFilter()))
    (new,) = await sql(db, _RETRY)
    assert (new.priority, new.seconds, new.heads, new.affinity) == (10, hours, "agent-7", made.affinity)


async def test_a_retry_of_a_batchs_line_has_the_whole_window_of_its_batch(db: Database) -> None:
    await new_batch(db, "batch_a")
    made = replace(new_line("batch_a", 1, background=True), window_seconds=60.0)
    await Inserter(db).create(made)
    await endings.fail(db, made.id, "server_error", "broken")
    await failed(db)
    await carried_out(db, await started(db, ActionKind.RETRY, ResponseFilter(batch="batch_a")))
    (new,) = await sql(db, _RETRY)
    assert (new.priority, new.seconds, new.batch_id) == (10, 86400, None)
    assert new.retry_of == made.id


async def test_retries_reserve_of_their_projects_limits(db: Database) -> None:
    for _ in range(3):
        await failed(db)
    async with db.begin() as connection:
        limit = LimitRow("default", "*", LimitKind.QUEUED_RESPONSES, 2)
        assert await limits.put(connection, limit, 10)
    action, _ = await carried_out(db, await started(db, ActionKind.RETRY, ResponseFilter()))
    assert (action.done, dict(action.refused)) == (2, {"limit_reached": 1})
    rows = await sql(db, "SELECT reserved_at FROM responses WHERE status = 'queued'")
    assert len(rows) == 2 and all(row.reserved_at is not None for row in rows)


async def test_retries_end_at_what_they_reserve_as_new_responses_do(db: Database) -> None:
    await alive(db)  # its model takes 4096 tokens
    for more in ({"max_output_tokens": 9000}, {"extra": {"min_tokens": 100}}, {"compaction": {"threshold": 1000}}, {}):
        await failed(db, **more)
    async with db.begin() as connection:
        assert await limits.put(connection, LimitRow("default", "*", LimitKind.TOKENS_PER_DAY, 10**6), 10)
    await carried_out(db, await started(db, ActionKind.RETRY, ResponseFilter()))
    columns = "reserved_output, request->>'max_output_tokens', request->>'summary_tokens'"
    rows = await sql(db, f"SELECT {columns} FROM responses WHERE status = 'queued' ORDER BY reserved_output")
    assert [tuple(row) for row in rows] == [
        *((64, "64", None), (100, "100", None), (128, "64", "64"), (4096, "9000", None))
    ]


async def test_a_retry_reserves_nothing_of_limits_that_only_requests_are_charged_to(db: Database) -> None:
    await failed(db)
    async with db.begin() as connection:
        assert await limits.put(connection, LimitRow("default", "*", LimitKind.REQUESTS_PER_MINUTE, 10), 10)
    await carried_out(db, await started(db, ActionKind.RETRY, ResponseFilter()))
    assert await scalar(db, "SELECT reserved_at FROM responses WHERE status = 'queued'") is None


# -- lists -------------------------------------------------------------------------------------------------------------


async def test_a_page_that_finds_nothing_in_its_reach_says_from_where_to_go_on(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LARGE_WINDOWS", (2, 3))
    monkeypatch.setattr(listing, "PAGE_SECONDS", 60.0)
    (rare,) = await many_queued(db, 1, metadata={"run": "rare"})
    await many_queued(db, 12)
    only, after, pages, found = ResponseFilter(metadata=(("run", "rare"),)), None, 0, list[str]()
    while True:
        page = await listing.find_page(db, only, Page(20, after, descending=True))
        found, after, pages = found + [entry.id for entry in page.entries], page.last_id, pages + 1
        if not page.has_more:
            break
        assert page.is_cut
    assert (found, pages) == ([rare], 3)


PAIRS = {
    ("run", "a"): True,
    ("run", "b"): False,
    ("quote", 'x"y'): True,
    ("nul", "\0"): True,
    ("tail", '","run":"b'): True,
    ('x","run', "b"): False,
    ("", "run"): False,
    ("unicode", "äß\N{GRINNING FACE}"): True,
}


async def test_metadata_matches_whole_pairs_alone(db: Database) -> None:
    (response_id,) = await many_queued(db, 1, metadata=dict(pair for pair, matches in PAIRS.items() if matches))
    for pair, matches in PAIRS.items():
        page = await listing.find_page(db, ResponseFilter(metadata=(pair,)), Page(20))
        assert [entry.id for entry in page.entries] == ([response_id] if matches else []), pair


# -- the process -------------------------------------------------------------------------------------------------------


async def test_maintenance_that_is_killed_leaves_the_rest_to_the_next(
    db: Database, services: Any, tmp_path: Path
) -> None:
    ids = await many_queued(db, 1500)
    action = await started(db, ActionKind.CANCEL, QUEUED, 1500)
    urls = {"DATABASE_URL": services.database_url, "REDIS_URL": services.redis_url, "LONGHAUL_HOME": str(tmp_path)}

    def start() -> ForkedProcess:
        return ForkedProcess(["maintenance"], urls, tmp_path / "log")

    process = start()
    try:
        await until(lambda: has_begun(db, action), what="the first step")
        process.kill()
        process = start()
        await until(lambda: has_completed(db, action), what="the end")
    finally:
        process.kill()
    assert (await action_of(db, action.id)).done == 1500
    assert await statuses(db) == {"cancelled": 1500}
    await check_cancelled(db, ids[::10])


async def has_begun(db: Database, action: ActionRow) -> bool:
    return (await action_of(db, action.id)).done > 0


async def has_completed(db: Database, action: ActionRow) -> bool:
    return (await action_of(db, action.id)).state is ActionState.COMPLETED
