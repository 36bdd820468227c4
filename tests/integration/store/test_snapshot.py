"""The read model of operators, as the fleet's metrics show it, on real Postgres."""

from __future__ import annotations

from collections import Counter

import pytest

from app.maintenance.fleet import figures
from app.queue.message import Priority, class_of
from app.store.database import Database
from app.store.operations import snapshot
from app.store.queue import drains, pauses
from app.store.responses import claims
from tests.integration.store.common import sql
from tests.support.rows import alive, claim, claimed, new_batch, queued, release_all
from tests.support.waiting_rows import QUEUE, end, waiting, weigh
from tests.support.webhooks import ended as end_at_once
from tests.support.webhooks import endpoint

RETENTION = 3600.0
MODELS = {"model.scripted": "scripted"}
STATES = """
    SELECT queue, priority, CASE
        WHEN worker IS NOT NULL THEN 'running' WHEN status = 'in_progress' AND NOT yielded THEN 'released'
        WHEN sent_at IS NULL THEN 'waiting' ELSE 'sent' END AS state, count(*)
    FROM responses WHERE finished_at IS NULL GROUP BY 1, 2, 3
"""
"""The same figures, as one plain query finds them."""


async def shown(db: Database) -> dict[str, dict[tuple[str, ...], float]]:
    return figures(await snapshot.read(db, RETENTION), MODELS)


async def counted(db: Database) -> dict[tuple[str, ...], float]:
    found: Counter[tuple[str, ...]] = Counter()
    for queue, priority, state, number in await sql(db, STATES):
        found[(queue.removeprefix("model."), *class_of(priority), state)] += number
    return dict(found)


def nonzero(found: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    return {key: number for key, number in found.items() if number}


async def test_each_response_counts_in_its_state_and_class(db: Database) -> None:
    await alive(db)
    await waiting(db, "p1", 3)
    await waiting(db, "p1", 2, priority=Priority.FLEX)
    await waiting(db, "p2", 1, priority=Priority.FOREGROUND)
    running, yielding, released = [await claimed(db, background=True) for _ in range(3)]
    assert await claims.yield_(db, yielding.id, yielding.attempt, str(yielding.worker))
    assert await claims.release(db, released.id, released.attempt, str(released.worker))
    found = await shown(db)
    assert nonzero(found["responses"]) == await counted(db)
    assert found["responses"]["scripted", "default", "background", "waiting"] == 4, "with the one that yielded"
    assert running.worker is not None


async def test_a_suspect_is_none_any_more_once_it_made_progress(db: Database) -> None:
    async def suspects() -> float:
        return (await shown(db))["suspects"]["scripted",]

    row = await claimed(db, "dead")
    await release_all(db, "dead")
    assert await suspects() == 1
    await alive(db, "w")
    assert await claim(db, row.id, "w") is not None
    assert await suspects() == 1
    chunk = (
        "INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)"
        " VALUES (:id, 50, 50, 2, false, 'abcd', '', 0)"
    )
    await sql(db, chunk, id=row.id)
    assert await suspects() == 0


async def test_the_age_is_that_of_the_oldest_response_that_nobody_has_claimed(db: Database) -> None:
    first = await queued(db)
    await queued(db)
    await sql(db, "UPDATE responses SET inserted_at = inserted_at - interval '100 s' WHERE id = :id", id=first)
    key = ("scripted", "default", "background")
    assert 100 <= (await shown(db))["oldest_queued_seconds"][key] < 3600
    await alive(db, "w")
    assert await claim(db, first, "w") is not None
    assert (await shown(db))["oldest_queued_seconds"][key] < 100


async def test_workers_are_those_whose_lease_lasts_by_model(db: Database) -> None:
    await alive(db, "w1")
    await alive(db, "w2")
    await alive(db, "gone", lease_seconds=-1)
    await sql(db, "UPDATE workers SET slots = 0 WHERE id = 'w2'")
    found = await shown(db)
    assert nonzero(found["workers"]) == {("scripted", "ready"): 1, ("scripted", "draining"): 1}
    assert found["slots"] == {("scripted",): 32}
    assert 0 < found["lease_seconds"]["scripted",] <= 60


async def test_a_model_of_the_models_file_without_workers_shows_none(db: Database) -> None:
    states = ("ready", "draining", "drained")
    assert (await shown(db))["workers"] == {("scripted", state): 0 for state in states}


async def test_workers_that_operators_drain_are_counted_by_whether_they_have_responses(db: Database) -> None:
    for name in ("busy", "idle", "ready"):
        await alive(db, name)
    await claimed(db, "busy")
    async with db.begin() as connection:
        for name in ("busy", "idle"):
            await drains.drain(connection, name, None, None)
    found = await shown(db)
    assert set(found["workers"].items()) == {((MODELS[QUEUE], state), 1) for state in ("ready", "draining", "drained")}
    assert found["drains"] == {("scripted",): 2}
    assert found["slots"] == {("scripted",): 32}


async def test_what_is_paused_is_counted_and_is_not_the_oldest_of_what_waits(db: Database) -> None:
    for project, seconds in (("a", 500), ("b", 100)):
        await weigh(db, project, 1)
        await waiting(db, project, 1)
        old = "UPDATE responses SET inserted_at = now() - make_interval(secs => :age) WHERE project = :project"
        await sql(db, old, age=seconds, project=project)
    key = ("scripted", "default", "background")
    for project, oldest in (("a", 100), (None, 0)):
        async with db.begin() as connection:
            await pauses.pause(connection, QUEUE, project, "scripted", None, None)
        assert oldest <= (await shown(db))["oldest_queued_seconds"][key] < oldest + 60
    assert (await shown(db))["paused"] == {("scripted", "model"): 1, ("scripted", "project"): 1}


async def test_logs_count_from_the_end_of_their_retention_on(db: Database) -> None:
    response = await claimed(db)
    ended = (
        "UPDATE responses SET status = 'cancelled', finished_at = now() - make_interval(secs => :age), output = '[]',"
        " worker = NULL, log_bytes = 1000, log = :log WHERE id = :id"
    )
    for age, log, size in ((3000, "live", 0), (4000, "live", 1000), (4000, "merged", 1000), (4000, "deleted", 0)):
        await sql(db, ended, age=age, log=log, id=response.id)
        found = await shown(db)
        assert found["reclaimable_log_bytes"] == {(): size}
        assert (found["log_overdue_seconds"][()] >= 400) is bool(size)


async def test_projects_beyond_the_fifty_with_most_waiting_are_one(db: Database) -> None:
    for number in range(52):
        await waiting(db, f"p{number:02}", 1 if number < 2 else 3)
    found = (await shown(db))["waiting_by_project"]
    assert len(found) == 51
    assert found["other",] == 2


async def test_the_pace_looks_back_as_far_as_it_reads_past_what_ended_without_a_worker(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await waiting(db, "a", 51)
    await end(db, ids)
    times = "started_at = now() - interval '1 hour', finished_at = now() - make_interval(secs => :ago)"
    for response_id, ago in zip(ids, (200, 100, 0), strict=False):
        await sql(db, f"UPDATE responses SET sent_to = 'w', {times} WHERE id = :id", id=response_id, ago=ago)
    for most_read, ended, seconds in ((50, 2, 200), (1_000, 3, 300)):
        monkeypatch.setattr(snapshot, "MAX_ENDED_READ", most_read)
        found = (await snapshot.read(db, RETENTION)).paces
        assert sum(each.ended for each in found) == ended
        assert seconds - 1 <= found[0].seconds < seconds + 60


async def test_lines_in_files_count_for_the_model_of_their_queue_before_any_is_a_response(db: Database) -> None:
    """The lines are of an adapter, and of a model with a queue of its own."""
    for name in ("adapter", "scripted"):
        await new_batch(db, name, lines=20, model=name, queue="special")
    found = figures(await snapshot.read(db, RETENTION), {"special": "scripted"})
    assert nonzero(found["lines_in_files"]) == {("scripted",): 40}


async def test_webhook_endpoints_count_by_their_state_and_deliveries_are_late_for_healthy_ones(db: Database) -> None:
    for name in ("healthy", "failing", "disabled", "gone"):
        await endpoint(db, name=name)
    old = "UPDATE webhook_deliveries SET due_at = due_at - interval '1 hour' WHERE endpoint = :id"
    await end_at_once(db, 1)
    assert (await shown(db))["webhook_late_seconds"][()] < 60
    await sql(db, old, id="we_failing")
    change = "UPDATE webhook_endpoints SET failing_since = now() - interval '2 hours' WHERE id <> 'we_healthy'"
    await sql(db, change)
    reasons = {"we_disabled": "failing", "we_gone": "gone"}
    for name, reason in reasons.items():
        disabling = "UPDATE webhook_endpoints SET disabled_at = now(), disabled_reason = :reason WHERE id = :id"
        await sql(db, disabling, id=name, reason=reason)
    found = await shown(db)
    assert found["webhook_endpoints"] == {("healthy",): 1, ("failing",): 1, ("disabled",): 2}
    assert found["webhook_late_seconds"][()] < 60
    bad = (await snapshot.read(db, RETENTION)).webhooks.bad
    assert {each.id: each.is_disabled for each in bad} == {"we_disabled": True, "we_failing": False}
    await sql(db, old, id="we_healthy")
    assert 3600 <= (await shown(db))["webhook_late_seconds"][()] < 3700
