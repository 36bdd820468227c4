"""Limits on a real Postgres: nobody gets past them, and every ending gives back what was not used."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from app.protocol.errors import LimitReached
from app.protocol.limits import Allowance, LimitKind
from app.protocol.response import error_object
from app.store.database import Database
from app.store.responses import endings, logs
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import NewResponse, Reserving
from app.store.rows import Ending
from app.store.tenants import limits, projects
from tests.integration.store.common import scalar, sql
from tests.support.limited import OUTPUT, PROJECT, limited_project, put, remove, reserving, used
from tests.support.requests import message
from tests.support.rows import WORKER, Writer, claim, new_response

DAY = "tokens_per_day"
PLENTY = {kind.value: 10**9 for kind in LimitKind}


async def reserved_tokens(db: Database) -> int:
    return int(await scalar(db, "SELECT coalesce(sum(reserved_input + reserved_output), 0) FROM responses"))


async def inserted(inserter: Inserter, **more: Any) -> NewResponse:
    new = reserving(**more)
    assert isinstance(await inserter.create(new), Allowance)
    return new


class TestReserving:
    async def test_a_response_reserves_the_bytes_of_its_request_and_its_output(
        self, db: Database, inserter: Inserter
    ) -> None:
        await limited_project(db, **PLENTY)
        new = replace(reserving(input=[message("中" * 1000)]), reserving=Reserving(5000, OUTPUT))
        allowance = await inserter.create(new)
        size = await scalar(db, "SELECT reserved_bytes FROM responses")
        assert size == await scalar(db, "SELECT octet_length(CAST(request AS text)) FROM responses") > 3000
        taken = await used(db)
        assert taken[DAY] == size + 5000 + OUTPUT
        assert (taken["queued_responses"], taken["queued_bytes"], taken["unfinished_responses"]) == (1, size, 1)
        assert isinstance(allowance, Allowance) and allowance.requests is not None and allowance.tokens is not None
        assert allowance.requests.remaining == 10**9, "it is charged before"

    async def test_counting_tokens_reserves_none(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, tokens_per_day=1, unfinished_responses=5)
        await inserted(inserter, output_tokens=None)
        assert await used(db) == {DAY: 0, "unfinished_responses": 1}

    async def test_a_refused_request_in_a_batch_refuses_no_other(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, queued_bytes=20_000)
        huge = inserter.create(reserving(input="x" * 30_000))
        results = await asyncio.gather(huge, *(inserter.create(reserving()) for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results] == [LimitReached, *[Allowance] * 5]

    async def test_without_limits_nothing_is_reserved(self, db: Database, inserter: Inserter) -> None:
        new = new_response()
        assert await inserter.create(new) is None
        await endings.cancel(db, new.id, None)
        assert await scalar(db, "SELECT count(*) FROM settlements") == 0
        assert await scalar(db, "SELECT reserved_at FROM responses") is None


class TestRaces:
    async def test_64_clients_of_two_processes_get_not_one_token_too_many(self, db: Database) -> None:
        """Two inserters share nothing but Postgres, as two processes."""
        await limited_project(db, tokens_per_day=15 * 1000, unfinished_responses=1000)
        databases = [db.sibling(4) for _ in range(2)]
        inserters = [Inserter(each) for each in databases]
        creating = (each.create(reserving()) for _ in range(32) for each in inserters)
        results = Counter(map(type, await asyncio.gather(*creating, return_exceptions=True)))
        assert results.keys() == {Allowance, LimitReached}
        count = results[Allowance]
        assert count == await scalar(db, "SELECT count(*) FROM responses")
        reserved = await reserved_tokens(db)
        assert 0 < reserved <= 15_000 and 15_000 - reserved < reserved / count
        assert await used(db) == {DAY: reserved, "unfinished_responses": count}
        for each in (*inserters, *databases):
            await each.close()

    async def test_a_project_whose_limits_are_held_delays_no_other(self, db: Database, inserter: Inserter) -> None:
        for name in ("slow", "quick"):
            await limited_project(db, name, unfinished_responses=10)
        async with db.begin() as connection:
            await limits.hold(connection, ["slow"])
            waiting = [asyncio.create_task(inserter.create(reserving("slow"))) for _ in range(3)]
            for size in (1, 10**6):
                made = [inserter.create(reserving(name, input="x" * size)) for name in ("slow", "quick")]
                slow, quick = map(asyncio.create_task, made)
                assert isinstance(await quick, Allowance)
                waiting.append(slow)
            assert not any(task.done() for task in waiting)
        assert all([isinstance(await task, Allowance) for task in waiting])
        assert await used(db, "slow") == {"unfinished_responses": 5}

    async def test_projects_of_one_batch_in_opposite_order_do_not_deadlock(self, db: Database) -> None:
        names = [f"proj_{number}" for number in range(8)]
        for name in names:
            await limited_project(db, name, queued_responses=1000)
        inserters = [Inserter(db) for _ in range(4)]
        orders = [names, names[::-1], names[4:] + names[:4], names[::-1]]
        pairs = [(made, name) for made, order in zip(inserters, orders, strict=True) for name in order * 4]
        await asyncio.gather(*(made.create(reserving(name)) for made, name in pairs))
        for name in names:
            assert await used(db, name) == {"queued_responses": 16}
        for made in inserters:
            await made.close()


PROMPT = 2


async def _begin(db: Database, response_id: str) -> Writer:
    row = await claim(db, response_id, WORKER)
    assert row is not None
    writer = Writer(row)
    await logs.append(db, [writer.begin(PROMPT)])
    return writer


async def _say(db: Database, response_id: str) -> Writer:
    writer = await _begin(db, response_id)
    await logs.append(db, [writer.say("a", 1, 2, 3)])
    return writer


async def _complete(db: Database, response_id: str) -> None:
    await logs.append(db, [(await _begin(db, response_id)).finish()])


async def _fail_in_the_worker(db: Database, response_id: str) -> None:
    writer = await _say(db, response_id)
    events = writer.stream.fail(error_object("server_error", "no"))
    await logs.append(db, [writer.entry(events, (), Ending.of(writer.stream.response, writer.row.read_at))])


async def _cancel(db: Database, response_id: str) -> None:
    await endings.cancel(db, response_id, None)


async def _delete(db: Database, response_id: str) -> None:
    await endings.delete(db, PROJECT, response_id)


async def _fail(db: Database, response_id: str) -> None:
    await endings.fail(db, response_id, "queue_timeout", "late")


ENDINGS: list[tuple[Callable[[Database, str], Awaitable[None]], bool, int]] = [
    (_complete, False, 3),
    (_fail_in_the_worker, False, PROMPT + 3),
    *((end, has_begun, (PROMPT + 3) * has_begun) for end in (_cancel, _delete, _fail) for has_begun in (False, True)),
]
"""How a response ends, whether it has begun before, and the tokens that it took."""


class TestSettling:
    async def test_every_ending_gives_back_what_was_not_used(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, **PLENTY)
        taken = 0
        for end, has_begun, tokens in ENDINGS:
            new = await inserted(inserter)
            if has_begun:
                await _say(db, new.id)
            await end(db, new.id)
            taken += tokens
            found = await used(db)
            assert found[DAY] == taken, (end, has_begun)
            kinds = ("queued_responses", "queued_bytes", "unfinished_responses")
            assert [found[kind] for kind in kinds] == [0] * 3, (end, has_begun)
            assert await scalar(db, "SELECT count(*) FROM settlements") == 0

    async def test_a_claim_frees_the_place_in_the_queue_and_no_more(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, **PLENTY)
        new = await inserted(inserter)
        before = await used(db)
        await claim(db, new.id, WORKER)
        taken = await used(db)
        assert (taken["queued_responses"], taken["queued_bytes"], taken["unfinished_responses"]) == (0, 0, 1)
        assert taken[DAY] == before[DAY]

    async def test_a_response_that_used_more_than_it_reserved_is_charged_for_it(
        self, db: Database, inserter: Inserter
    ) -> None:
        await limited_project(db, tokens_per_day=10**6)
        new = await inserted(inserter)
        await sql(db, "UPDATE responses SET reserved_input = 1, reserved_output = 0")
        before = (await used(db))[DAY]
        await _complete(db, new.id)
        assert (await used(db))[DAY] == before + 2

    async def test_tokens_of_a_minute_come_back_less_what_was_refilled(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, tokens_per_minute=6000)
        new = await inserted(inserter)
        # Half a second ago by all clocks: 50 tokens were refilled.
        await sql(db, "UPDATE responses SET reserved_at = reserved_at - interval '0.5 s'")
        await sql(db, "UPDATE limits SET as_of = as_of - interval '0.5 s', since = since - interval '1 s'")
        before = (await used(db))["tokens_per_minute"]
        assert before <= await reserved_tokens(db) - 50
        await _complete(db, new.id)
        assert 0 <= (await used(db))["tokens_per_minute"] <= 3

    async def test_a_minute_later_nothing_comes_back(self, db: Database, inserter: Inserter) -> None:
        """The bucket was refilled meanwhile; somebody else took it all."""
        await limited_project(db, tokens_per_minute=6000)
        new = await inserted(inserter)
        await sql(db, "UPDATE responses SET reserved_at = reserved_at - interval '61 s'")
        await sql(db, "UPDATE limits SET used = 6000, as_of = clock_timestamp(), since = since - interval '1 h'")
        await endings.cancel(db, new.id, None)
        assert (await used(db))["tokens_per_minute"] > 5500

    async def test_yesterday_s_tokens_do_not_come_back_today(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, tokens_per_day=100_000)
        old, new = await inserted(inserter), await inserted(inserter)
        await sql(db, "UPDATE responses SET reserved_at = reserved_at - interval '1 day' WHERE id = :old", old=old.id)
        await sql(db, "UPDATE limits SET since = since - interval '2 days'")
        await endings.cancel(db, old.id, None)
        assert (await used(db))[DAY] == await reserved_tokens(db)
        await endings.cancel(db, new.id, None)
        assert (await used(db))[DAY] == await reserved_tokens(db) / 2

    async def test_a_new_day_begins_with_nothing(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, tokens_per_day=100_000, unfinished_responses=9)
        await inserted(inserter)
        await sql(db, "UPDATE limits SET as_of = as_of - interval '1 day'")
        assert await used(db) == {DAY: 0, "unfinished_responses": 1}


class TestSetting:
    async def test_responses_from_before_a_limit_do_not_count_in_it(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, queued_responses=10)
        old = await inserted(inserter)
        await put(db, LimitKind.UNFINISHED_RESPONSES, 1)
        await inserted(inserter)
        await endings.cancel(db, old.id, None)
        assert await used(db) == {"queued_responses": 1, "unfinished_responses": 1}

    async def test_a_project_is_limited_while_it_has_limits_that_responses_reserve_of(self, db: Database) -> None:
        await limited_project(db, requests_per_minute=5, reads_per_minute=5)
        assert not (await projects.find(db, [PROJECT]))[PROJECT].is_limited
        await put(db, LimitKind.QUEUED_RESPONSES, 10)
        assert (await projects.find(db, [PROJECT]))[PROJECT].is_limited
        assert not await remove(db, LimitKind.QUEUED_BYTES)
        assert await remove(db, LimitKind.QUEUED_RESPONSES)
        assert not (await projects.find(db, [PROJECT]))[PROJECT].is_limited


async def test_the_store_has_no_other_way_to_end_a_response(db: Database, inserter: Inserter) -> None:
    """Even plain SQL settles: the trigger is on the status."""
    await limited_project(db, unfinished_responses=5)
    await inserted(inserter)
    await sql(db, "UPDATE responses SET status = 'cancelled', output = '[]', finished_at = now()")
    assert await used(db) == {"unfinished_responses": 0}
