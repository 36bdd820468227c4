"""Claims and releases on a real Postgres: one owner at a time, and no deadlocks."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace

import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.sizes import LARGE_BYTES
from app.store import database
from app.store.database import Database
from app.store.queue import workers
from app.store.responses import claims, endings, lookup
from app.store.responses.endings import Exhausted, Overdue
from app.store.responses.inserts import Inserter
from app.store.rows import LargeRow, ResponseRow
from tests.support.player import row_of
from tests.support.requests import message
from tests.support.rows import WORKER, alive, claim, claimed, living, new_response, queued, release_all
from tests.support.waiting import until
from tests.support.waiting_rows import take, waiting
from workers.generation.claimer import Claimer
from workers.generation.runs import ActiveRuns

LARGE = [message("x" * 2 * LARGE_BYTES)]


async def waits_for_a_lock(db: Database) -> bool:
    async with db.autocommit() as connection:
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool((await connection.execute(waiting)).scalar_one())


async def test_only_one_of_many_claims_wins(db: Database) -> None:
    response_id = await queued(db)
    claims = await asyncio.gather(*(claim(db, response_id, f"w{i}") for i in range(8)))
    won = [row for row in claims if row is not None]
    assert len(won) == 1
    assert (won[0].status, won[0].attempt) == (Status.IN_PROGRESS, 1)


async def test_a_claim_of_an_owned_final_or_unknown_response_gets_nothing(db: Database) -> None:
    row = await claimed(db)
    assert await claim(db, row.id, "other") is None
    await endings.cancel(db, row.id, "default")
    assert await claim(db, row.id, "other") is None
    assert await claim(db, "resp_unknown", "other") is None


async def test_a_large_response_is_claimed_with_others_and_read_alone(db: Database) -> None:
    large, small = await queued(db, input=LARGE), await queued(db)
    async with living(db, "w"):
        of_large, of_small = await claims.claim_all(db, [(large, "w"), (small, "w")])
        assert of_large == LargeRow(large)
        assert isinstance(of_small, ResponseRow)
        again = await queued(db, input=LARGE)
        row = await Claimer(db, ActiveRuns(), lambda: "w").claim(again)
    assert row is not None
    assert (row.id, row.attempt, row.worker, row.request["input"]) == (again, 1, "w", LARGE)


async def test_claims_made_together_end_as_if_made_one_by_one(db: Database) -> None:
    waiting, released, owned = await queued(db), await claimed(db), await claimed(db)
    await claims.release(db, released.id, released.attempt, WORKER)
    final = await queued(db)
    await endings.cancel(db, final, None)
    late = replace(new_response(), queue_seconds=-1.0)
    await Inserter(db).create(late)
    wanted = [owned.id, waiting, final, "resp_unknown", released.id, late.id]
    async with living(db, "w"):
        rows = await claims.claim_all(db, [(response_id, "w") for response_id in wanted])
    got = [(row.id, row.attempt, row.worker, row.status) if isinstance(row, ResponseRow) else None for row in rows]
    mine = ("w", Status.IN_PROGRESS)
    assert got == [None, (waiting, 1, *mine), None, None, (released.id, 2, *mine), None]
    assert [row for row in rows if row] == [await lookup.find(db, row.id) for row in rows if row]


async def test_of_duplicates_in_one_batch_the_first_gets_the_response(db: Database) -> None:
    one, other = await queued(db), await queued(db)
    async with living(db, "a", "b"):
        rows = await claims.claim_all(db, [(one, "a"), (other, "a"), (one, "b"), (one, "a")])
    assert [row and (row.id, row.attempt, row.worker) for row in rows] == [(one, 1, "a"), (other, 1, "a"), None, None]


async def test_batches_of_claims_in_any_order_do_not_deadlock_and_claim_each_response_once(db: Database) -> None:
    ids = [await queued(db) for _ in range(40)]
    databases = [db.sibling(1) for _ in range(4)]
    orders = [[(each, f"w{number}") for each in random.Random(number).sample(ids, 40)] for number in range(4)]
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
        wanted = [(cancelled, "w"), (released.id, "w")]
        claiming = asyncio.create_task(claims.claim_all(db, wanted))
        await until(lambda: waits_for_a_lock(db), what="the claims wait")
    none, row = await claiming
    assert none is None
    assert row is not None
    assert (row.worker, row.attempt) == ("w", 2)


async def test_a_claim_reads_no_row_but_its_own(db: Database) -> None:
    """Old statistics say that hardly anything waits or runs. Postgres must not choose an index of that."""
    await take(db, await waiting(db, "a", 2000))
    async with db.autocommit() as connection:
        end = "UPDATE responses SET status = 'cancelled', worker = NULL, finished_at = now(), output = '[]'"
        await connection.execute(text(end))
        await connection.execute(text("VACUUM ANALYZE responses"))
    wanted = [await queued(db) for _ in range(8)]
    async with db.begin() as connection:
        explain = text(f"EXPLAIN {claims._CLAIM.text}")
        plan = (await connection.execute(explain, {"id": wanted, "worker": ["w"] * 8, "max_claims": 9})).scalars()
    lines = "\n".join(plan)
    assert "responses_pkey" in lines
    assert not re.search(r"responses_\w+_idx|Seq Scan on responses", lines)


async def test_a_released_response_is_claimed_under_a_new_attempt(db: Database) -> None:
    row = await claimed(db)
    assert await claims.release(db, row.id, row.attempt, WORKER)
    again = await claim(db, row.id, "other")
    assert again is not None
    assert (again.attempt, again.crashes) == (2, 0)


async def test_a_release_reads_no_request(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    row = await claimed(db, stream=True)
    parsed: list[str] = []
    monkeypatch.setattr(database, "from_json", lambda stored: parsed.append(stored))
    own = db.sibling(1)
    assert await claims.release(own, row.id, row.attempt, WORKER, 1)
    await own.close()
    assert not parsed


async def test_releasing_the_responses_of_a_worker_that_still_writes_does_not_deadlock(db: Database) -> None:
    """The worker's journal has locked the first row of a batch; rows are stored in another order than their ids."""
    ids = sorted([(await queued(db)) for _ in range(2)])
    for response_id in reversed(ids):
        await claim(db, response_id, WORKER)
    lock = text("SELECT id FROM responses WHERE id = :id FOR SHARE")
    async with db.begin() as batch:
        await batch.execute(lock, {"id": ids[0]})
        taking = asyncio.create_task(release_all(db, WORKER))
        await until(lambda: waits_for_a_lock(db), what="the taker waits")
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
        await until(lambda: waits_for_a_lock(db), what="the claim waits")
    assert await claiming == [None]


async def test_release_by_an_earlier_attempt_is_refused(db: Database) -> None:
    row = await claimed(db)
    await claims.release(db, row.id, row.attempt, WORKER)
    await claim(db, row.id, "other")
    assert not await claims.release(db, row.id, row.attempt, WORKER)


async def test_the_responses_of_a_dead_worker_are_released_and_claimed_by_another(db: Database) -> None:
    await alive(db, lease_seconds=0.0)
    row = await claimed(db)
    assert await workers.release_dead_workers(db, lease_seconds=0.0) == [WORKER]
    again = await claim(db, row.id, "other")
    assert again is not None
    assert (again.attempt, again.crashes) == (2, 1)


async def test_a_response_after_its_last_crash_is_found_to_be_failed(db: Database) -> None:
    row = await claimed(db)
    await release_all(db, WORKER)
    assert await endings.find_exhausted(db, max_crashes=2, max_claims=9) == []
    assert await endings.find_exhausted(db, max_crashes=1, max_claims=9) == [Exhausted(row.id, 1, 1)]
    assert await endings.fail(db, row.id, "server_error", "crashed too often") is not None
    assert (await row_of(db, row.id)).error == {"code": "server_error", "message": "crashed too often"}


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


async def test_a_claim_does_not_wait_for_the_disk_and_leaves_the_connection_as_it_was(db: Database) -> None:
    response_id = await queued(db)
    assert await claim(db, response_id, "w") is not None
    show = text("SHOW synchronous_commit")
    async with db.autocommit() as connection:
        assert (await connection.execute(show)).scalar_one() == "on"
    await alive(db, "w")
    async with db.begin() as connection:
        await connection.execute(claims._CLAIM, {"id": [await queued(db)], "worker": ["w"], "max_claims": 9})
        assert (await connection.execute(show)).scalar_one() == "off"
