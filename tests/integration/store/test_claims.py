"""Claims and releases on a real Postgres: one owner at a time, and no deadlocks."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from sqlalchemy import text

from app.metrics.instruments import WorkerMetrics
from app.protocol.status import Status
from app.sizes import LARGE_BYTES
from app.store.database import Database
from app.store.queue import workers
from app.store.responses import claims, endings, lookup
from app.store.responses.endings import Exhausted, Overdue
from app.store.responses.inserts import Inserter
from app.store.rows import LargeRow, ResponseRow
from tests.integration.store.common import blocked, scalar
from tests.support.logs import row_of
from tests.support.requests import message
from tests.support.rows import WORKER, alive, claim, claimed, living, new_response, queued, release_all
from workers.generation.claimer import Claimer
from workers.generation.run import ActiveRuns

LARGE = [message("x" * 2 * LARGE_BYTES)]


async def test_only_one_of_many_claims_wins(db: Database) -> None:
    response_id = await queued(db)
    claims = await asyncio.gather(*(claim(db, response_id, f"w{i}") for i in range(8)))
    won = [row for row in claims if row is not None]
    assert len(won) == 1
    assert (won[0].status, won[0].attempt) == (Status.IN_PROGRESS, 1)


async def test_a_large_response_is_claimed_with_others_and_read_alone(db: Database) -> None:
    large, small = await queued(db, input=LARGE), await queued(db)
    async with living(db, "w"):
        of_large, of_small = await claims.claim_all(db, [(large, "w"), (small, "w")])
        assert of_large == LargeRow(large)
        assert isinstance(of_small, ResponseRow)
        again = await queued(db, input=LARGE)
        row = await Claimer(db, ActiveRuns(), lambda: "w", WorkerMetrics()).claim(again)
    assert row is not None
    assert (row.id, row.attempt, row.worker, row.request["input"]) == (again, 1, "w", LARGE)


async def test_claims_made_together_end_as_if_made_one_by_one(db: Database) -> None:
    waiting, released, owned = await queued(db), await claimed(db), await claimed(db)
    twice = await queued(db)
    await claims.release(db, released.id, released.attempt, WORKER)
    final = await queued(db)
    await endings.cancel(db, final, None)
    late = replace(new_response(), queue_seconds=-1.0)
    await Inserter(db).create(late)
    wanted = [owned.id, waiting, final, "resp_unknown", released.id, late.id]
    async with living(db, "w", "a"):
        *rows, first, second = await claims.claim_all(
            db, [*((each, "w") for each in wanted), (twice, "a"), (twice, "w")]
        )
    assert first is not None and (await row_of(db, twice)).worker == "a"
    assert second is None, "of duplicates the first one gets it"
    got = [(row.id, row.attempt, row.worker, row.status) if isinstance(row, ResponseRow) else None for row in rows]
    mine = ("w", Status.IN_PROGRESS)
    assert got == [None, (waiting, 1, *mine), None, None, (released.id, 2, *mine), None]
    assert [row for row in rows if row] == [await lookup.find(db, row.id) for row in rows if row]


async def test_batches_of_claims_in_any_order_do_not_deadlock_and_claim_each_response_once(db: Database) -> None:
    ids = [await queued(db) for _ in range(20)]
    databases = [db.sibling(1) for _ in range(4)]
    orders = [[(each, f"w{number}") for each in random.Random(number).sample(ids, 20)] for number in range(4)]
    async with living(db, "w0", "w1", "w2", "w3"):
        batches = await asyncio.gather(*map(claims.claim_all, databases, orders))
    won = [row.id for batch in batches for row in batch if row is not None]
    assert sorted(won) == sorted(ids)
    for each in databases:
        await each.close()


async def test_a_claim_that_waited_for_a_lock_judges_the_row_as_it_is_then(db: Database) -> None:
    """The row was released, or cancelled, while the claim waited for its lock."""
    released, cancelled = await claimed(db), await queued(db)
    await alive(db, "w")
    async with db.begin() as other:
        ending = "status = 'cancelled', finished_at = now(), output = '[]'"
        await other.execute(text(f"UPDATE responses SET {ending} WHERE id = :id"), {"id": cancelled})
        await other.execute(text("UPDATE responses SET worker = NULL WHERE id = :id"), {"id": released.id})
        claiming = asyncio.create_task(claims.claim_all(db, [(cancelled, "w"), (released.id, "w")]))
        await blocked(db)
    none, row = await claiming
    assert none is None
    assert row is not None
    assert (row.worker, row.attempt) == ("w", 2)


async def test_a_released_response_is_claimed_under_a_new_attempt_which_the_earlier_one_cannot_release(
    db: Database,
) -> None:
    row = await claimed(db)
    assert await claims.release(db, row.id, row.attempt, WORKER)
    again = await claim(db, row.id, WORKER)
    assert again is not None
    assert (again.attempt, again.crashes) == (2, 0)
    assert not await claims.release(db, row.id, row.attempt, WORKER)


async def test_releasing_the_responses_of_a_worker_that_still_writes_does_not_deadlock(db: Database) -> None:
    """The worker's journal has locked the first row of a batch; rows are stored in another order than their ids."""
    ids = sorted([(await queued(db)) for _ in range(2)])
    for response_id in reversed(ids):
        await claim(db, response_id, WORKER)
    lock = text("SELECT id FROM responses WHERE id = :id FOR SHARE")
    async with db.begin() as batch:
        await batch.execute(lock, {"id": ids[0]})
        taking = asyncio.create_task(release_all(db, WORKER))
        await blocked(db)
        await batch.execute(lock, {"id": ids[1]})
    await taking
    assert [(await claim(db, response_id, "other")) is not None for response_id in ids] == [True, True]


async def test_a_response_is_claimed_so_many_times_at_most(db: Database) -> None:
    row = await claimed(db)
    await claims.release(db, row.id, row.attempt, WORKER)
    await alive(db, "other")
    assert await claims.claim_all(db, [(row.id, "other")], max_claims=1) == [None]
    assert await endings.find_exhausted(db, max_crashes=9, max_claims=2) == []
    assert await endings.find_exhausted(db, max_crashes=9, max_claims=1) == [Exhausted(row.id, 1, 0)]
    (again,) = await claims.claim_all(db, [(row.id, "other")], max_claims=2)
    assert again is not None
    assert await endings.find_exhausted(db, max_crashes=9, max_claims=1) == []


async def test_only_a_living_worker_claims(db: Database) -> None:
    response_id = await queued(db)
    await alive(db, "dead", lease_seconds=0.0)
    for worker in ("dead", "unregistered"):
        assert await claims.claim_all(db, [(response_id, worker)]) == [None]
        assert not await workers.is_alive(db, worker)
    await alive(db, "living")
    assert await workers.is_alive(db, "living")
    assert (await claims.claim_all(db, [(response_id, "living")])) != [None]


async def test_a_claim_waits_for_the_removal_of_its_worker_and_fails(db: Database) -> None:
    """The worker is removed while its claim is under way: what it claimed then would count as a crash."""
    response_id = await queued(db)
    await alive(db, "w")
    async with db.begin() as removing:
        await removing.execute(text("DELETE FROM workers WHERE id = 'w'"))
        claiming = asyncio.create_task(claims.claim_all(db, [(response_id, "w")]))
        await blocked(db)
    assert await claiming == [None]


async def test_a_response_that_waited_too_long_is_not_claimed_and_is_found_overdue(db: Database) -> None:
    new = replace(new_response(), queue_seconds=0.001)
    await Inserter(db).create(new)
    assert await claim(db, new.id, WORKER) is None
    assert list(await endings.find_overdue(db)) == [Overdue(new.id, Status.QUEUED, ends_at_once=True)]


async def test_a_run_deadline_starts_with_the_first_claim_and_a_takeover_does_not_extend_it(db: Database) -> None:
    new = replace(new_response(), run_seconds=0.001)
    await Inserter(db).create(new)
    row = await claim(db, new.id, WORKER)
    assert row is not None
    await claims.release(db, row.id, row.attempt, WORKER)
    await claim(db, new.id, "other")
    assert list(await endings.find_overdue(db)) == [Overdue(new.id, Status.IN_PROGRESS)]


async def test_a_claim_that_does_not_wait_for_the_disk_leaves_the_connection_as_it_was(db: Database) -> None:
    single = db.sibling(1)
    assert await claim(single, await queued(db), "w") is not None
    assert await scalar(single, "SHOW synchronous_commit") == "on"
    await single.close()
