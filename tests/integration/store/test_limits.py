"""Limits on a real Postgres: nobody gets past them, and every ending gives back what was not used."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from app.protocol.errors import LimitReached
from app.protocol.limits import Allowance, LimitKind
from app.protocol.response import error_object
from app.protocol.status import Status
from app.sizes import LARGE_BYTES
from app.store.database import Database
from app.store.responses import endings, inserts, logs, lookup
from app.store.responses.inserts import LOCKED_AT_ONCE, Inserter
from app.store.responses.new_rows import NewResponse, Reserving
from app.store.rows import Ending, Idempotency
from app.store.tenants import limits, projects
from tests.support.limited import OUTPUT, PROJECT, insert_many, limited_project, put, remove, reserving, used
from tests.support.player import row_of
from tests.support.requests import message
from tests.support.rows import WORKER, Writer, alive, claim, new_response
from tests.support.waiting import until

DAY = "tokens_per_day"
PLENTY = {kind.value: 10**9 for kind in LimitKind}


@pytest.fixture
async def inserter(db: Database) -> AsyncIterator[Inserter]:
    made = Inserter(db)
    yield made
    await made.close()


async def sql(db: Database, statement: str, **values: Any) -> Any:
    async with db.begin() as connection:
        result = await connection.execute(text(statement), values)
        return result.scalar() if result.returns_rows else None


async def reserved_tokens(db: Database) -> int:
    return int(await sql(db, "SELECT coalesce(sum(reserved_input + reserved_output), 0) FROM responses"))


async def inserted(inserter: Inserter, **more: Any) -> NewResponse:
    new = reserving(**more)
    assert isinstance(await inserter.create(new), Allowance)
    return new


class TestReserving:
    async def test_a_request_counts_by_its_bytes_whatever_its_characters(
        self, db: Database, inserter: Inserter
    ) -> None:
        await limited_project(db, **PLENTY)
        new = reserving()
        await inserter.create(replace(new, request={**new.request, "input": [message("中" * 1000)]}))
        assert await sql(db, "SELECT reserved_bytes = request_bytes AND reserved_bytes > 3000 FROM responses")

    async def test_a_response_reserves_the_bytes_of_its_request_and_its_output(
        self, db: Database, inserter: Inserter
    ) -> None:
        await limited_project(db, **PLENTY)
        new = replace(reserving(), reserving=Reserving(5000, OUTPUT))
        allowance = await inserter.create(new)
        size = await sql(db, "SELECT reserved_bytes FROM responses")
        assert size == await sql(db, "SELECT octet_length(CAST(request AS text)) FROM responses")
        taken = await used(db)
        assert taken[DAY] == size + 5000 + OUTPUT
        assert (taken["queued_responses"], taken["queued_bytes"], taken["unfinished_responses"]) == (1, size, 1)
        assert isinstance(allowance, Allowance) and allowance.requests is not None and allowance.tokens is not None
        assert allowance.requests.remaining == 10**9, "it is charged before"

    async def test_counting_tokens_reserves_none(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, tokens_per_day=1, unfinished_responses=5)
        await inserted(inserter, output_tokens=None)
        assert await used(db) == {DAY: 0, "unfinished_responses": 1}

    async def test_what_does_not_fit_is_not_there_and_takes_nothing(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, queued_responses=10, tokens_per_minute=10)
        with pytest.raises(LimitReached, match="tokens_per_minute"):
            await inserter.create(reserving())
        assert await used(db) == {"queued_responses": 0, "tokens_per_minute": 0}
        assert await sql(db, "SELECT count(*) FROM responses") == 0

    async def test_a_refusal_rewrites_no_limit(self, db: Database, inserter: Inserter) -> None:
        versions = "SELECT array_agg(CAST(xmin AS text) ORDER BY kind) FROM limits"
        await limited_project(db, unfinished_responses=1, requests_per_minute=1000, tokens_per_minute=10**9)
        await inserted(inserter)
        before = await sql(db, versions)
        with pytest.raises(LimitReached, match="unfinished_responses"):
            await inserter.create(reserving())
        assert await sql(db, versions) == before

    async def test_a_limit_on_a_model_leaves_the_others(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, unfinished_responses=3)
        await put(db, LimitKind.UNFINISHED_RESPONSES, 1, model="scripted")
        await inserted(inserter)
        with pytest.raises(LimitReached, match="the model 'scripted'"):
            await inserter.create(reserving())
        for _ in range(2):
            await inserted(inserter, model="other")
        with pytest.raises(LimitReached, match="all models"):
            await inserter.create(reserving(model="other"))

    async def test_a_refused_request_in_a_batch_refuses_no_other(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, queued_bytes=20_000)
        huge = inserter.create(reserving(input="x" * 30_000))
        results = await asyncio.gather(huge, *(inserter.create(reserving()) for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results] == [LimitReached, *[Allowance] * 5]

    async def test_a_repeated_key_reserves_once(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, unfinished_responses=10)
        made = [replace(reserving(), idempotency=Idempotency("key", b"1")) for _ in range(3)]
        results = await asyncio.gather(*map(inserter.create, made))
        assert sum(isinstance(result, Allowance) for result in results) == 1
        assert await used(db) == {"unfinished_responses": 1}

    async def test_without_limits_no_row_is_touched(self, db: Database, inserter: Inserter) -> None:
        new = new_response()
        assert await inserter.create(new) is None
        await endings.cancel(db, new.id, None)
        assert await sql(db, "SELECT count(*) FROM settlements") == 0
        assert await sql(db, "SELECT reserved_at FROM responses") is None

    async def test_a_project_whose_limits_were_removed_meanwhile_is_let_in(
        self, db: Database, inserter: Inserter
    ) -> None:
        await limited_project(db, queued_responses=1)
        assert await remove(db, LimitKind.QUEUED_RESPONSES)
        for _ in range(3):
            await inserted(inserter)


class TestRaces:
    async def test_64_clients_of_four_processes_get_not_one_token_too_many(self, db: Database, services: Any) -> None:
        await limited_project(db, tokens_per_day=30 * 1000, unfinished_responses=1000)
        programs = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.support.limited", services.database_url, "64"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            for _ in range(4)
        ]
        for program in programs:
            assert program.stdout is not None and await program.stdout.readline() == b"ready\n"
        answers = await asyncio.gather(*(program.communicate(b"go\n") for program in programs))
        count = sum(int(out) for out, _ in answers)
        assert count == await sql(db, "SELECT count(*) FROM responses")
        reserved = await reserved_tokens(db)
        assert 0 < reserved <= 30_000 and 30_000 - reserved < reserved / count
        assert await used(db) == {DAY: reserved, "unfinished_responses": count}

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
        assert inserter._own._batches == {}

    async def test_large_responses_of_a_held_project_are_in_no_batch_with_small_ones(
        self, db: Database, inserter: Inserter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await limited_project(db, "slow", unfinished_responses=100)
        batches: list[list[int]] = []
        reserve = inserts.reserve

        async def watched(connection: Any, held: Any, batch: Sequence[NewResponse], lines: Any) -> Any:
            batches.append([new.size for new in batch])
            return await reserve(connection, held, batch, lines)

        async with db.begin() as connection:
            await limits.hold(connection, ["slow"])
            made = [reserving("slow", input="x" * size) for size in (1, 10**6) * 3]
            waiting = [asyncio.create_task(inserter.create(new)) for new in made]
            await until(lambda: "slow" in inserter._own)
            monkeypatch.setattr(inserts, "reserve", watched)
        await asyncio.gather(*waiting)
        assert sum(map(len, batches)) == 6
        assert all(len(batch) < 2 or max(batch) <= LARGE_BYTES for batch in batches), batches

    async def test_projects_whose_limits_are_held_leave_connections_to_the_others(
        self, db: Database, inserter: Inserter
    ) -> None:
        names = [f"project{number}" for number in range(10)]
        for name in names:
            await limited_project(db, name, unfinished_responses=10)
        pool: Any = db.engine.pool
        async with db.begin() as connection:
            await limits.hold(connection, names)
            waiting = [asyncio.create_task(inserter.create(reserving(name))) for name in names]
            await until(lambda: all(name in inserter._own for name in names))
            await until(lambda: pool.checkedout() == 1 + LOCKED_AT_ONCE)
            assert await inserter.create(new_response()) is None
            assert not any(task.done() for task in waiting)
        assert all([isinstance(await task, Allowance) for task in waiting])

    async def test_each_project_of_a_batch_is_held_against_its_own_limits(
        self, db: Database, inserter: Inserter
    ) -> None:
        names = [f"project{number}" for number in range(20)]
        for name in names:
            await limited_project(db, name, unfinished_responses=2)
        made = [inserter.create(reserving(name)) for _ in range(3) for name in names]
        results = await asyncio.gather(*made, return_exceptions=True)
        assert [type(result) for result in results] == [Allowance] * 40 + [LimitReached] * 20
        assert all([await used(db, name) == {"unfinished_responses": 2} for name in names])

    async def test_places_in_the_queue_are_given_out_to_the_last_one(self, db: Database) -> None:
        await limited_project(db, queued_responses=50)
        outcomes = await asyncio.gather(*(insert_many(db, 64) for _ in range(4)))
        assert sum(each["inserted"] for each in outcomes) == 50

    async def test_projects_of_one_batch_in_opposite_order_do_not_deadlock(self, db: Database) -> None:
        names = [f"proj_{number}" for number in range(8)]
        for name in names:
            await limited_project(db, name, queued_responses=1000)
        inserters = [Inserter(db) for _ in range(4)]
        orders = [names, names[::-1], names[4:] + names[:4], names[::-1]]
        pairs = [(made, name) for made, order in zip(inserters, orders, strict=True) for name in order * 10]
        await asyncio.gather(*(made.create(reserving(name)) for made, name in pairs))
        for name in names:
            assert await used(db, name) == {"queued_responses": 40}
        for made in inserters:
            await made.close()

    async def test_limits_hold_while_responses_end(self, db: Database, inserter: Inserter) -> None:
        """Inserts, claims and endings at once: never more than five unfinished, and in the end none."""
        await limited_project(db, unfinished_responses=5, queued_responses=3)
        await alive(db)
        done = 0

        async def client() -> None:
            nonlocal done
            while True:
                try:
                    new = reserving()
                    await inserter.create(new)
                except LimitReached:
                    await asyncio.sleep(0.005)
                    continue
                assert await sql(db, "SELECT count(*) FROM responses WHERE finished_at IS NULL") <= 5
                await _complete(db, new.id)
                done += 1
                return

        await asyncio.gather(*(client() for _ in range(20)))
        assert done == 20
        assert await used(db) == {"unfinished_responses": 0, "queued_responses": 0}


async def _complete(db: Database, response_id: str) -> None:
    row = await claim(db, response_id, WORKER)
    assert row is not None
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    await logs.append(db, [writer.finish()])


async def _fail_in_the_worker(db: Database, response_id: str) -> None:
    row = await claim(db, response_id, WORKER)
    assert row is not None
    writer = Writer(row)
    await logs.append(db, [writer.begin(PROMPT)])
    await logs.append(db, [writer.say("a", 1, 2)])
    events = writer.stream.fail(error_object("server_error", "no"))
    await logs.append(db, [writer.entry(events, (3,), Ending.of(writer.stream.response, row.read_at))])


async def _begin(db: Database, response_id: str) -> None:
    row = await claim(db, response_id, WORKER)
    assert row is not None
    writer = Writer(row)
    await logs.append(db, [writer.begin(PROMPT)])
    await logs.append(db, [writer.say("a", 1, 2, 3)])


async def _cancel(db: Database, response_id: str) -> None:
    await endings.cancel(db, response_id, None)


async def _begin_and_cancel(db: Database, response_id: str) -> None:
    await _begin(db, response_id)
    await _cancel(db, response_id)


async def _delete(db: Database, response_id: str) -> None:
    await endings.delete(db, PROJECT, response_id)


async def _begin_and_delete(db: Database, response_id: str) -> None:
    await _begin(db, response_id)
    await _delete(db, response_id)


async def _expire(db: Database, response_id: str) -> None:
    await endings.fail(db, response_id, "queue_timeout", "late", only=Status.QUEUED)


async def _begin_and_exhaust(db: Database, response_id: str) -> None:
    await _begin(db, response_id)
    await endings.fail(db, response_id, "server_error", "too often", only=Status.IN_PROGRESS)


PROMPT = 2
ENDINGS = [
    (_complete, 3),
    (_fail_in_the_worker, PROMPT + 3),
    (_cancel, 0),
    (_begin_and_cancel, PROMPT + 3),
    (_delete, 0),
    (_begin_and_delete, PROMPT + 3),
    (_expire, 0),
    (_begin_and_exhaust, PROMPT + 3),
]


class TestSettling:
    @pytest.mark.parametrize(("end", "tokens"), ENDINGS, ids=[each[0].__name__ for each in ENDINGS])
    async def test_every_ending_gives_back_what_was_not_used(
        self,
        db: Database,
        inserter: Inserter,
        end: Callable[[Database, str], Awaitable[None]],
        tokens: int,
    ) -> None:
        await limited_project(db, **PLENTY)
        new = await inserted(inserter)
        await end(db, new.id)
        taken = await used(db)
        assert taken[DAY] == tokens
        for kind in ("queued_responses", "queued_bytes", "unfinished_responses"):
            assert taken[kind] == 0, kind
        assert await sql(db, "SELECT count(*) FROM settlements") == 0

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

    async def test_a_reservation_without_its_process_is_settled_by_the_ending_that_comes_anyhow(
        self, db: Database, services: Any, inserter: Inserter
    ) -> None:
        """The API and Postgres crash right after the insert; maintenance lets the response expire."""
        await limited_project(db, unfinished_responses=1, tokens_per_day=10**6)
        new = await inserted(inserter)
        await asyncio.to_thread(services.postgres.kill)
        await asyncio.to_thread(services.heal)
        assert (await row_of(db, new.id)).status is Status.QUEUED
        assert (await used(db))["unfinished_responses"] == 1
        await _expire(db, new.id)
        assert await used(db) == {"unfinished_responses": 0, DAY: 0}

    async def test_maintenance_settles_a_project_that_sends_nothing_more(
        self, db: Database, inserter: Inserter
    ) -> None:
        await limited_project(db, unfinished_responses=5)
        new = await inserted(inserter)
        await endings.cancel(db, new.id, None)
        await limits.settle(db)
        assert await sql(db, "SELECT count(*) FROM settlements") == 0
        assert await sql(db, "SELECT used FROM limits") == 0


class TestSetting:
    async def test_responses_from_before_a_limit_do_not_count_in_it(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, queued_responses=10)
        old = await inserted(inserter)
        await put(db, LimitKind.UNFINISHED_RESPONSES, 1)
        await inserted(inserter)
        await endings.cancel(db, old.id, None)
        assert await used(db) == {"queued_responses": 1, "unfinished_responses": 1}

    async def test_a_changed_limit_keeps_what_is_taken(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, queued_responses=10)
        await inserted(inserter)
        await put(db, LimitKind.QUEUED_RESPONSES, 1)
        with pytest.raises(LimitReached):
            await inserter.create(reserving())

    async def test_a_project_is_limited_while_it_has_limits_that_responses_reserve_of(self, db: Database) -> None:
        await limited_project(db, requests_per_minute=5, reads_per_minute=5)
        assert not (await projects.find(db, [PROJECT]))[PROJECT].is_limited
        await put(db, LimitKind.QUEUED_RESPONSES, 10)
        assert (await projects.find(db, [PROJECT]))[PROJECT].is_limited
        assert not await remove(db, LimitKind.QUEUED_BYTES)
        assert await remove(db, LimitKind.QUEUED_RESPONSES)
        assert not (await projects.find(db, [PROJECT]))[PROJECT].is_limited

    async def test_the_wait_for_a_place_follows_from_what_left_the_queue(
        self, db: Database, inserter: Inserter
    ) -> None:
        await limited_project(db, queued_responses=4)
        made = [await inserted(inserter) for _ in range(4)]
        await sql(db, "UPDATE limits SET since = since - interval '1 h'")
        await sql(db, "UPDATE responses SET reserved_at = reserved_at - interval '5 s'")
        for new in made[:3]:
            await claim(db, new.id, WORKER)
        for _ in range(3):
            await inserted(inserter)
        with pytest.raises(LimitReached) as caught:
            await inserter.create(reserving())
        # Three left within 30 s or so: one in ten seconds.
        assert caught.value.shortage.wait_seconds == pytest.approx(10, rel=0.3)


async def test_the_store_has_no_other_way_to_end_a_response(db: Database, inserter: Inserter) -> None:
    """Even plain SQL settles: the trigger is on the status."""
    await limited_project(db, unfinished_responses=5)
    await inserted(inserter)
    await sql(db, "UPDATE responses SET status = 'cancelled', output = '[]', finished_at = now()")
    assert await used(db) == {"unfinished_responses": 0}
    assert await lookup.find(db, "resp_none") is None
