"""Which worker takes a response: on a real Postgres, by inserts and by dispatches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import text

from app.queue.message import Priority
from app.store.context.size import find_previous
from app.store.database import Database
from app.store.queue import redelivery, workers
from app.store.queue.workers import WorkerIdentity
from app.store.responses import claims
from app.store.responses.new_rows import PREFIX_BYTES, NewResponse
from app.store.tables import DEFAULT_PROJECT
from tests.integration.store.common import placed, sql
from tests.support.rows import new_response
from tests.support.waiting_rows import QUEUE, end, sent, take, waiting

LONG = "x" * PREFIX_BYTES
LOST = 1000.0


async def with_workers(db: Database, **slots: int) -> None:
    """Living workers with so many slots each, kept ones included."""
    for node, count in slots.items():
        await workers.register(db, WorkerIdentity(node, "scripted", QUEUE, "host", 1, 4096, count, node), 3600.0)


async def insert(db: Database, *made: NewResponse) -> list[str | None]:
    """Inserts responses together; returns the node that each is sent to, None of those that wait."""
    return [sending.sent_to for sending in await placed(db, *made)]


async def following(db: Database, response_id: str) -> NewResponse:
    """A response that continues this one, as an API process accepts it."""
    found = await find_previous(db, DEFAULT_PROJECT, response_id)
    assert found is not None
    return replace(new_response(previous_response_id=response_id), ran_on=found.node)


async def nodes_of(db: Database, ids: Sequence[str]) -> list[str]:
    found = "SELECT id, sent_to FROM responses WHERE id = ANY(:ids)"
    nodes = {row.id: row.sent_to for row in await sql(db, found, ids=list(ids))}
    return [nodes[each] for each in ids]


async def loads(db: Database) -> Counter[str]:
    has = "SELECT sent_to FROM responses WHERE sent_at IS NOT NULL AND finished_at IS NULL"
    return Counter(row.sent_to for row in await sql(db, has))


async def test_claimed_responses_count_for_the_worker_that_claimed_them(db: Database) -> None:
    """A message that came late may be claimed by another worker than the one it was sent to last."""
    await with_workers(db, a=8, b=8)
    made = [new_response() for _ in range(2)]
    assert await insert(db, *made) == ["a", "b"]
    await claims.claim_all(db, [(each.id, "b") for each in made])
    assert await loads(db) == {"b": 2}
    assert await insert(db, new_response()) == ["a"]


# Affinity


async def previous(db: Database, node: str) -> str:
    """A response that ended on this node; returns its id."""
    new = new_response()
    await insert(db, new)
    await take(db, [new.id], node)
    await end(db, [new.id])
    return new.id


async def test_what_continues_a_response_goes_where_that_one_ran(db: Database) -> None:
    await with_workers(db, a=8, b=8)
    for node in ("b", "a", "b"):
        assert await insert(db, await following(db, await previous(db, node))) == [node]


async def test_a_response_that_waited_goes_where_the_one_before_it_ran(db: Database) -> None:
    await with_workers(db, a=8, b=8)
    before = await previous(db, "b")
    full = await waiting(db, "a", 20)
    first = await sent(db)
    late = await following(db, before)
    assert await insert(db, late) == [None]
    await end(db, [*first, *full])
    assert await sent(db) == [late.id]
    assert await nodes_of(db, [late.id]) == ["b"]


def test_what_begins_alike_has_one_affinity() -> None:
    tools = [{"type": "function", "name": "f", "parameters": {"description": LONG}}]
    for alike in ({"prompt_cache_key": "k"}, {"conversation": {"id": "c"}}, {"instructions": LONG}, {"tools": tools}):
        assert new_response(**alike).affinity == new_response(**alike, input=[]).affinity is not None


def test_short_beginnings_and_other_projects_are_not_alike() -> None:
    assert new_response(instructions="Be brief.").affinity is None
    assert new_response(prompt_cache_key="k").affinity != new_response(prompt_cache_key="k", project="b").affinity
    assert new_response(prompt_cache_key="conv").affinity != new_response(conversation={"id": "conv"}).affinity
    continuing = [new_response(continuation_id="c", prompt_cache_key=key).affinity for key in "kl"]
    assert continuing[0] == continuing[1] != new_response(prompt_cache_key="k").affinity


# Workers that stop, die, or take nothing


@pytest.mark.parametrize("goes", [True, False])
async def test_what_was_sent_to_a_worker_that_goes_is_sent_to_others_in_its_order(db: Database, goes: bool) -> None:
    """Between the dispatch and the claim."""
    ids = await waiting(db, "a", 10)
    await with_workers(db, a=4, b=4)
    assert await sent(db) == ids[:8]
    before = await nodes_of(db, ids[:8])
    of_a = [each for each, node in zip(ids[:8], before, strict=True) if node == "a"]
    if goes:
        await workers.unregister(db, "a")
    else:
        await workers.heartbeat(db, "a", 3600.0, {}, 0)
    assert sorted(await redelivery.put_back(db, LOST)) == of_a
    assert await sent(db) == [], "the other one is full"
    await end(db, [each for each in ids[:8] if each not in of_a])
    assert await sent(db) == of_a
    assert set(await nodes_of(db, of_a)) == {"b"}


async def test_a_worker_that_never_claims_is_sent_less_until_its_next_heartbeat(db: Database) -> None:
    """It looks idle, because what it leaves lying goes to others."""
    ids = await waiting(db, "a", 30)
    await with_workers(db, a=5, b=16)
    first = await sent(db)
    left_lying = [each for each, node in zip(first, await nodes_of(db, first), strict=True) if node == "a"]
    assert len(left_lying) == 5
    await take(db, [each for each in first if each not in left_lying], "b")
    await sql(db, "UPDATE responses SET sent_at = now() - interval '1 hour' WHERE sent_to = 'a'")
    assert sorted(await redelivery.put_back(db, LOST)) == sorted(left_lying)
    await end(db, ids[:1])
    await sent(db)
    assert (await loads(db))["a"] == 3, "it has three of its five slots left"
    await workers.heartbeat(db, "a", 3600.0, {}, 5)
    await sent(db)
    assert (await loads(db))["a"] == 5


async def test_what_waits_for_its_tools_leaves_its_slot_to_others(db: Database) -> None:
    await with_workers(db, a=16)
    await insert(db, *(new_response() for _ in range(15)))
    background, stream = new_response(), replace(new_response(), priority=Priority.FOREGROUND.value)
    assert await insert(db, stream) == ["a"], "by a foreground place"
    await workers.heartbeat(db, "a", 3600.0, {}, 16, (14, 0))
    assert await insert(db, background) == ["a"]
    await workers.heartbeat(db, "a", 3600.0, {}, 16, (0, 1))
    assert await insert(db, replace(new_response(), priority=Priority.FOREGROUND.value)) == ["a"]
    assert await insert(db, new_response()) == [None]


async def test_what_is_sent_while_its_worker_goes_waits_again(db: Database) -> None:
    """An insert does not see that the worker was just removed."""
    await with_workers(db, a=4)
    late = new_response()
    async with db.begin() as connection:
        await connection.execute(text("DELETE FROM workers WHERE id = 'a'"))
        assert await insert(db, late) == ["a"]
    assert await redelivery.put_back(db, LOST) == [late.id]


async def test_released_responses_go_to_a_worker_however_full_it_is(db: Database) -> None:
    await with_workers(db, a=4, b=4)
    ids = await waiting(db, "a", 6)
    await sent(db)
    await take(db, ids, "b")
    for each in ids:
        assert await claims.release(db, each, 1, "b")
    await workers.heartbeat(db, "b", 3600.0, {}, 0)
    messages = await redelivery.take_released(db)
    assert {(message.response_id, message.list) for message in messages} == {(each, f"{QUEUE}@a") for each in ids}
