"""One response in a worker, on real Postgres and Valkey: from every claim to every outcome."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.protocol.types import Json
from app.store import database
from app.store.database import Database, StoreBusy, StoreUnavailable
from app.store.queue import workers
from app.store.responses import claims, endings, logs, lookup
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from tests.support import grammar
from tests.support.logs import events_of, row_of, text_of, whole
from tests.support.requests import message
from tests.support.rows import claim, queued, release_all, released
from tests.support.waiting import until
from tests.support.worker import Job, NoDispatcher, Worker, worker
from workers.generation import suspects
from workers.generation.cancellation import Cancelled
from workers.generation.outcome import Outcome, ResponseFailed

SLOW = {"tokens_per_second": 300.0}
UNHURRIED = {"tokens_per_second": 40.0}
"""The engine catches up with its rate: at this one, no answer ends while a slow machine has yet to look at it."""


def asking(text: str) -> list[dict[str, object]]:
    return [message(text)]


async def committed(db: Database, response_id: str, events: int, job: Job | None = None) -> None:
    """Waits until the log has that many events, or until the job has ended."""

    async def enough() -> bool:
        has_ended = job is not None and job.task.done()
        return has_ended or len(await events_of(db, response_id)) >= events

    await until(enough, what=f"{events} events of {response_id}")


async def test_a_response_runs_from_queued_to_completed(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/say Hello, wörld 👋!"))
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert text_of(row) == "Hello, wörld 👋!"
    assert row.attempt == 1
    assert row.usage is not None
    assert row.usage["output_tokens"] == len("Hello, wörld 👋!".encode()) + 1  # and the end token
    assert row.usage["total_tokens"] == row.usage["input_tokens"] + row.usage["output_tokens"]


async def test_max_output_tokens_makes_it_incomplete(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/say 0123456789"), max_output_tokens=4)
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.INCOMPLETE
    row = await whole(db, response_id, Status.INCOMPLETE)
    assert text_of(row) == "0123"
    assert row.output is not None
    assert row.output[0]["status"] == "incomplete"


async def test_instructions_come_first_and_join_a_leading_system_message(db: Database, pubsub: PubSub) -> None:
    system = [message("Be kind.", "developer"), message("Hello!")]
    response_id = await queued(db, instructions="Be terse.", input=system)
    async with worker(db, pubsub) as w:
        await w.run(response_id)
        prompt = await w.engine.render([{"role": "system", "content": "Be terse.\n\nBe kind."}], {})
    row = await whole(db, response_id)
    assert row.usage is not None
    assert row.usage["input_tokens"] > len(prompt)


async def test_a_hundred_responses_at_once_are_claimed_and_finished_once_each(db: Database, pubsub: PubSub) -> None:
    ids = [await queued(db, input=asking(f"/count {number}")) for number in range(100)]
    async with worker(db, pubsub, **SLOW) as w:
        outcomes = await asyncio.gather(*(w.run(response_id) for response_id in ids))
    assert outcomes == [Outcome.COMPLETED] * 100
    for number, response_id in enumerate(ids):
        row = await whole(db, response_id)
        assert text_of(row) == " ".join(str(n + 1) for n in range(number))


async def test_duplicate_messages_are_harmless(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/count 30"))
    async with worker(db, pubsub, **SLOW) as w, worker(db, pubsub, **SLOW) as other:
        outcomes = await asyncio.gather(w.run(response_id), w.run(response_id), other.run(response_id))
    assert sorted(outcome.value for outcome in outcomes) == ["completed", "not claimed", "not claimed"]
    assert (await whole(db, response_id)).attempt == 1


async def test_cancel_before_claim_never_reaches_the_engine(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/die 0"))
    await endings.cancel(db, response_id, None)
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.CANCELLED
        assert w.engine_deaths == 0
    assert (await whole(db, response_id, Status.CANCELLED)).attempt == 0


async def test_the_fence_stops_a_cancelled_response_and_frees_the_engine(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/count 100000"))
    async with worker(db, pubsub, **SLOW) as w:
        job = w.start(response_id)
        await committed(db, response_id, 8)
        await endings.cancel(db, response_id, None)
        assert await job.task is Outcome.CANCELLED
        assert w.engine.running == 0
        assert w.runs.attempts() == {}
    row = await whole(db, response_id, Status.CANCELLED)
    assert text_of(row).startswith("1 2")


async def test_a_response_that_is_cut_counts_the_tokens_of_its_prompt_as_one_that_ends_would(
    db: Database, pubsub: PubSub
) -> None:
    cut = await queued(db, input=asking("/count 90000"))
    noted = text("SELECT input_tokens, output_tokens FROM usage_entries ORDER BY id")
    async with worker(db, pubsub, tokens_per_second=1000.0) as w:
        for _ in range(2):  # the second attempt counts its prompt no more
            job = w.start(cut)
            await committed(db, cut, len(await events_of(db, cut)) + 6)
            assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
        assert await released(db) == [cut]
        job = w.start(cut)
        await until(lambda: w.engine.running)
        await endings.cancel(db, cut, None)
        assert await job.task is Outcome.CANCELLED
        ended = await queued(db, input=asking("/count 10000"), max_output_tokens=1)
        assert await w.run(ended) is Outcome.INCOMPLETE
    async with db.autocommit() as connection:
        (prompt, generated), (prompt_of_ended, _) = (await connection.execute(noted)).all()
    assert prompt == prompt_of_ended > 0
    assert generated > 2


async def test_a_revoke_after_the_fence_interrupts_no_statement(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted statement costs its connection, and a client that leaves a stream causes both, in any order."""
    find, asked, told = lookup.find_status, asyncio.Event(), asyncio.Event()

    async def slowly(db: Database, response_id: str) -> tuple[Status, Json | None] | None:
        asked.set()
        await told.wait()
        return await find(db, response_id)

    response_id = await queued(db, input=asking("/count 100000"))
    async with worker(db, pubsub, **SLOW) as w:
        job = w.start(response_id)
        await committed(db, response_id, 8)
        monkeypatch.setattr(lookup, "find_status", slowly)
        await endings.cancel(db, response_id, None)
        await asked.wait()
        stopped = asyncio.ensure_future(job.stop(Cancelled.REVOKED))
        await asyncio.sleep(0)
        told.set()
        assert await stopped is Outcome.CANCELLED


async def test_a_run_that_the_api_has_cancelled_locks_no_row(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of runs that are cancelled at once would keep the connections from everybody else."""

    async def forbidden(*_: object) -> None:
        raise AssertionError("the row is locked")

    response_id = await queued(db, input=asking("/hang 20"))
    async with worker(db, pubsub) as w:
        job = w.start(response_id)
        await until(lambda: w.engine.running)
        await endings.cancel(db, response_id, None)
        monkeypatch.setattr(endings, "cancel_all", forbidden)
        assert await job.stop(Cancelled.REVOKED) is Outcome.CANCELLED


async def test_a_revoked_job_cancels_its_row(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/hang 20"))
    async with worker(db, pubsub) as w:
        job = w.start(response_id)
        await until(lambda: w.engine.running)
        assert await job.stop(Cancelled.REVOKED) is Outcome.CANCELLED
        assert w.engine.running == 0
    await whole(db, response_id, Status.CANCELLED)


async def test_revoke_ends_queued_and_running_rows_and_names_those_it_ended(db: Database, pubsub: PubSub) -> None:
    waiting = await queued(db)
    async with worker(db, pubsub) as w:
        assert await w.runner.revoke([waiting, "resp_unknown"]) == [waiting]
        assert await w.runner.revoke([waiting]) == []
    await whole(db, waiting, Status.CANCELLED)


async def test_a_revoke_of_many_names_all_that_it_ended_although_postgres_was_away_between(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, cancel_all, calls = [await queued(db), await queued(db)], endings.cancel_all, 0

    async def away_once(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StoreUnavailable("away")
        return await cancel_all(*args, **options)

    monkeypatch.setattr(endings, "MAX_CANCELLED", 1)
    monkeypatch.setattr(endings, "cancel_all", away_once)
    async with worker(db, pubsub) as w:
        assert await w.runner.revoke(waiting) == waiting
    assert calls == 3


async def test_a_revoke_during_the_claim_cancels_the_response(db: Database, pubsub: PubSub) -> None:
    for _ in range(10):
        response_id = await queued(db, input=asking("/hang 5"))
        async with worker(db, pubsub) as w:
            job = w.start(response_id)
            await asyncio.sleep(0)  # the claim has started
            await job.stop(Cancelled.REVOKED)
        assert (await row_of(db, response_id)).status is Status.CANCELLED


@pytest.mark.parametrize("words", ["the quick brown fox jumps over it", "é👋🏽ü你好"])
async def test_a_response_released_in_the_middle_continues_exactly(db: Database, pubsub: PubSub, words: str) -> None:
    for events in (3, 6, 9, 12):
        response_id = await queued(db, input=asking(f"/say {words}"))
        async with worker(db, pubsub, **UNHURRIED) as first:
            job = first.start(response_id)
            await committed(db, response_id, min(events, 5 + len(words) // 2), job)
            assert await job.stop(Cancelled.SHUTDOWN) in (Outcome.RELEASED, Outcome.COMPLETED)
            left = await released(db)
        async with worker(db, pubsub) as second:
            for again in left:
                assert await second.run(again) is Outcome.COMPLETED
        row = await whole(db, response_id)
        assert text_of(row) == words
        assert row.usage is not None
        assert row.usage["output_tokens"] == len(words.encode()) + 1


async def test_a_response_is_released_only_when_its_last_chunk_is_committed(db: Database, pubsub: PubSub) -> None:
    """Else this worker may claim it again, and append to the journal while that chunk is still open there."""
    async with worker(db, pubsub, tokens_per_second=200.0) as w:
        first, second = [await queued(db, input=[message(f"/count {count}")]) for count in (2000, 20)]

        def is_open(response_id: str) -> bool:
            commit = w.journal._open.get(response_id)
            return commit is not None and not commit.done()

        holder = w.start(first)
        await until(lambda: w.engine.running == 1)
        async with db.begin() as connection:
            await connection.execute(text("SELECT FROM responses WHERE id = :id FOR UPDATE"), {"id": first})
            await until(lambda: is_open(first))  # its commit waits for the lock, and those behind it in line
            job = w.start(second)
            await until(lambda: is_open(second))
            stopping = asyncio.create_task(job.stop(Cancelled.SHUTDOWN))
            for _ in range(20):
                await db.ping()
            assert not stopping.done()
        assert await stopping is Outcome.RELEASED
        assert await w.run(second) is Outcome.COMPLETED
        await holder.stop(Cancelled.SHUTDOWN)
    assert text_of(await whole(db, second)) == " ".join(map(str, range(1, 21)))


@pytest.mark.parametrize("events", [6, 9, 14])
async def test_a_response_released_in_its_reasoning_goes_on_with_its_summary(
    db: Database, pubsub: PubSub, events: int
) -> None:
    thought = "one and " * 25
    reasoning = {"effort": None, "summary": "auto"}
    response_id = await queued(db, reasoning=reasoning, input=asking(f"/raw <think>{thought}two</think>Three"))
    async with worker(db, pubsub, **UNHURRIED) as first:
        job = first.start(response_id)
        await committed(db, response_id, events)
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
    async with worker(db, pubsub) as second:
        assert await second.run(response_id) is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert row.output is not None
    assert row.output[0]["summary"][0]["text"] == row.output[0]["content"][0]["text"] == f"{thought}two"
    grammar.check(await events_of(db, response_id))


async def test_a_response_released_before_its_first_token_starts_at_the_beginning(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db)
    row = await claim(db, response_id, "worker-that-stops")
    assert row is not None
    await claims.release(db, response_id, row.attempt, "worker-that-stops")
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    assert (await whole(db, response_id)).attempt == 2


async def test_a_response_with_a_seed_continues_after_a_release(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/count 300"), extra={"seed": 7})
    async with worker(db, pubsub, **UNHURRIED) as first:
        job = first.start(response_id)
        await committed(db, response_id, 8)
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
    async with worker(db, pubsub) as second:
        assert await second.run(response_id) is Outcome.COMPLETED
    assert text_of(await whole(db, response_id)).endswith(" 299 300")


async def test_an_end_that_the_worker_did_not_ask_for_releases_the_response(db: Database, pubsub: PubSub) -> None:
    """vLLM ends all its requests as `abort` when it is told to stop: that is no answer."""
    response_id = await queued(db, input=asking("/abort 200"))
    async with worker(db, pubsub, **SLOW) as w:
        assert await w.run(response_id) is Outcome.RELEASED
        assert await released(db) == [response_id]
        assert await w.run(response_id) is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert (row.attempt, row.crashes, len(text_of(row))) == (2, 0, 200)


async def test_an_engine_error_fails_the_response_and_nothing_else(db: Database, pubsub: PubSub) -> None:
    bad, good = await queued(db, input=asking("/fail 5")), await queued(db, input=asking("/count 50"))
    async with worker(db, pubsub, **SLOW) as w:
        outcomes = await asyncio.gather(w.run(bad), w.run(good), return_exceptions=True)
    assert isinstance(outcomes[0], ResponseFailed)
    assert outcomes[1] is Outcome.COMPLETED
    row = await whole(db, bad, Status.FAILED)
    assert row.error == {"code": "server_error", "message": "the script fails this request"}


@pytest.mark.parametrize("column", ["frames = 'poison'", "steps = '[{\"of a newer version\": 1}]'"])
async def test_a_response_whose_log_cannot_be_restored_fails_at_its_next_attempt(
    db: Database, pubsub: PubSub, column: str
) -> None:
    response_id = await queued(db, input=asking("/count 100000"))
    async with worker(db, pubsub, **SLOW) as w:
        job = w.start(response_id)
        await committed(db, response_id, 8)
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
        async with db.begin() as connection:
            await connection.execute(text(f"UPDATE chunks SET {column} WHERE first > 2"))
        with pytest.raises(ResponseFailed, match="the server had an error"):
            await w.run(response_id)
    row = await row_of(db, response_id)
    assert (row.status, row.attempt) == (Status.FAILED, 2)
    reading = await logs.read(db, response_id)
    assert reading.ended and reading.chunks[-1].final
    assert reading.chunks[-1].first == reading.chunks[-2].last + 1


async def test_an_ending_that_postgres_cannot_store_fails_the_response(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = logs.append

    async def refuse(db: Database, entries: Sequence[logs.Entry]) -> set[str]:
        if any(entry.ending is not None for entry in entries):
            raise ValueError("cannot be stored")
        return await append(db, entries)

    monkeypatch.setattr(logs, "append", refuse)
    response_id = await queued(db, input=asking("/say Hello"))
    async with worker(db, pubsub) as w:
        with pytest.raises(ResponseFailed):
            await w.run(response_id)
    assert text_of(await whole(db, response_id, Status.FAILED)) == "Hello"


async def test_a_response_whose_commits_postgres_ends_again_and_again_is_released(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(*_: object) -> set[str]:
        raise StoreBusy("QueryCanceledError")

    response_id = await queued(db, input=asking("/say Hello"))
    async with worker(db, pubsub) as w:
        with monkeypatch.context() as patch:
            patch.setattr(database, "BUSY_SECONDS", -1.0)
            patch.setattr(logs, "append", end)
            assert await w.run(response_id) is Outcome.RELEASED
        assert await w.run(response_id) is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert (row.attempt, row.crashes) == (2, 0)


async def test_a_prompt_longer_than_the_context_fails_before_any_output(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("x" * 100))
    async with worker(db, pubsub, context_length=50) as w:
        with pytest.raises(ResponseFailed, match="context holds 50"):
            await w.run(response_id)
    row = await whole(db, response_id, Status.FAILED)
    assert row.error is not None
    assert row.error["code"] == "context_length_exceeded"
    assert row.output == []


async def test_a_dead_engine_releases_its_responses_and_stops_the_worker(db: Database, pubsub: PubSub) -> None:
    killer, other = await queued(db, input=asking("/die 5")), await queued(db, input=asking("/count 300"))
    async with worker(db, pubsub, **SLOW) as w:
        outcomes = await asyncio.gather(w.run(killer), w.run(other))
        assert outcomes == [Outcome.RELEASED, Outcome.RELEASED]
        assert w.engine_deaths == 2
        assert sorted(await released(db)) == sorted([killer, other])
    async with worker(db, pubsub) as second:
        assert await second.run(other) is Outcome.COMPLETED
    assert text_of(await whole(db, other)).endswith(" 300")


async def test_a_deleted_response_stops_its_runner(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/count 100000"))
    async with worker(db, pubsub, **SLOW) as w:
        job = w.start(response_id)
        await committed(db, response_id, 5)
        await endings.delete(db, "default", response_id)
        assert await job.task is Outcome.CANCELLED
        assert w.engine.running == 0


async def test_the_heartbeat_fences_a_run_that_hangs(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/hang 3"))
    async with worker(db, pubsub, lease_seconds=0.3) as w:
        job = w.start(response_id)
        await committed(db, response_id, 5)
        await endings.cancel(db, response_id, None)
        assert await job.task is Outcome.CANCELLED
        assert w.engine.running == 0


async def test_a_response_orphaned_by_its_own_worker_is_released(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db)
    async with worker(db, pubsub, lease_seconds=0.15) as w:
        await claim(db, response_id, w.lease.worker)

        async def given_back() -> bool:
            return (await row_of(db, response_id)).worker is None

        await until(given_back)
        assert await w.run(response_id) is Outcome.COMPLETED


@pytest.mark.parametrize("copies", [1, 3])
async def test_a_claim_whose_reply_was_lost_runs_exactly_once(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    response_id, claim, lost = await queued(db, input=asking("/count 100")), claims.claim_all, []

    async def lossy(db: Database, wanted: Sequence[tuple[str, str]], **_: Any) -> list[ResponseRow | None]:
        rows = await claim(db, wanted)
        if len(lost) < copies:
            lost.append(rows)
            raise StoreUnavailable("the connection broke after the commit")
        return rows

    monkeypatch.setattr(claims, "claim_all", lossy)
    async with worker(db, pubsub, **SLOW) as w:
        outcomes = await asyncio.gather(*(w.run(response_id) for _ in range(copies)))
    assert sorted(outcome.value for outcome in outcomes) == ["completed"] + ["not claimed"] * (copies - 1)
    assert (await whole(db, response_id)).attempt == 1


def corrections(w: Worker) -> list[tuple[str, int, bool]]:
    assert isinstance(w.dispatcher, NoDispatcher)
    return w.dispatcher.corrected


async def test_whatever_ends_a_response_its_flow_is_charged_what_it_took(db: Database, pubsub: PubSub) -> None:
    asked = ("/say hello", "/count 100000", "/fail 5", "/count 3")
    whole_one, cancelled, failed, unclaimed = [await queued(db, input=asking(each)) for each in asked]
    await endings.cancel(db, unclaimed, None)
    async with worker(db, pubsub, **SLOW) as w:
        await w.run(whole_one)
        job = w.start(cancelled)
        await committed(db, cancelled, 8)
        await endings.cancel(db, cancelled, None)
        assert await job.task is Outcome.CANCELLED
        with pytest.raises(ResponseFailed):
            await w.run(failed)
        assert await w.run(unclaimed) is Outcome.CANCELLED
        by_id = {response_id: (used, cut_short) for response_id, used, cut_short in corrections(w)}
        assert len(corrections(w)) == 4
    usage = (await whole(db, whole_one)).usage
    assert usage is not None
    assert by_id[whole_one] == (usage["total_tokens"], False)
    for response_id in (cancelled, failed):
        used, cut_short = by_id[response_id]
        assert cut_short and used >= len(asked[0]) + 5, "its prompt, and what was generated"
    assert by_id[unclaimed] == (0, True)


async def test_a_response_that_goes_on_elsewhere_is_charged_when_it_ends(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/count 100000"))
    async with worker(db, pubsub, **SLOW) as first:
        job = first.start(response_id)
        await committed(db, response_id, 8)
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
        assert corrections(first) == []
    async with worker(db, pubsub, **SLOW) as second:
        job = second.start(response_id)
        await committed(db, response_id, 60)
        await endings.cancel(db, response_id, None)
        assert await job.task is Outcome.CANCELLED
        ((_, used, _),) = corrections(second)
    assert used > 60, "what the first attempt generated, too"


async def test_a_batch_of_claims_survives_a_cut_connection_and_a_cancellation(db: Database, pubsub: PubSub) -> None:
    """The connection breaks while the batch waits for a locked row. One response is cancelled, one is claimed twice."""
    ids = sorted([await queued(db, input=asking("/count 30")) for _ in range(4)])
    cancelled, *others = ids
    async with worker(db, pubsub, **SLOW) as w:
        async with db.begin() as locking:
            await locking.execute(text("SELECT 1 FROM responses WHERE id = :id FOR UPDATE"), {"id": others[0]})
            jobs = [w.start(response_id) for response_id in (*ids, others[1])]
            await until(lambda: waits_for_a_lock(db), what="the claims wait for the row")
            waiting = "wait_event_type = 'Lock' AND query LIKE '%claimant%'"
            cut = await locking.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {waiting}"))
            assert list(cut.scalars()) == [True]
            await endings.cancel(db, cancelled, None)
        outcomes = [await job.task for job in jobs]
    assert outcomes[0] is Outcome.CANCELLED
    assert [outcome.value for outcome in outcomes[1:]].count("completed") == len(others)
    assert {outcomes[2], outcomes[4]} == {Outcome.COMPLETED, Outcome.NOT_CLAIMED}
    assert [(await whole(db, response_id)).attempt for response_id in others] == [1, 1, 1]


async def waits_for_a_lock(db: Database) -> bool:
    async with db.autocommit() as connection:
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool((await connection.execute(waiting)).scalar_one())


async def test_a_worker_that_reclaims_a_response_runs_only_the_new_attempt(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/hang 3"))
    async with worker(db, pubsub, lease_seconds=0.6) as w:
        first = w.start(response_id)
        await committed(db, response_id, 5)
        await release_all(db, w.lease.worker)
        second = w.start(response_id)
        assert await first.task is Outcome.FENCED
        assert w.runs.attempts() == {response_id: 2}
        await until(lambda: w.engine.running == 1)
        await heartbeats(db, w.lease.worker, 3)
        assert not second.task.done()
        assert (await row_of(db, response_id)).attempt == 2
        assert await second.stop(Cancelled.REVOKED) is Outcome.CANCELLED


async def heartbeats(db: Database, worker_id: str, count: int) -> None:
    """Waits for that many heartbeats; each compares the runs with the rows of the worker."""
    seen = set()

    async def enough() -> bool:
        async with db.autocommit() as connection:
            lease = text("SELECT lease_until FROM workers WHERE id = :id")
            seen.add((await connection.execute(lease, {"id": worker_id})).scalar_one())
        return len(seen) > count

    await until(enough)


async def test_claims_wait_while_the_worker_is_not_registered(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease ran out and was removed. It claims nothing before it is a worker again, so no crash is counted."""
    response_id = await queued(db, input=asking("/say Hello"))
    register, may_register = workers.register, threading.Event()

    async def later(*args: Any) -> None:  # in the lease's thread
        await asyncio.to_thread(may_register.wait)
        await register(*args)

    async with worker(db, pubsub, lease_seconds=0.6) as w:
        first = w.lease.worker
        monkeypatch.setattr(workers, "register", later)
        await workers.unregister(db, first)
        job = w.start(response_id)
        await until(lambda: w.lease.worker != first)
        assert await workers.release_dead_workers(db) == []
        assert (await row_of(db, response_id)).status is Status.QUEUED
        may_register.set()
        assert await job.task is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert (row.attempt, row.crashes) == (1, 0)


async def test_a_loop_blocked_for_longer_than_the_lease_keeps_its_responses(db: Database, pubsub: PubSub) -> None:
    """One run blocks the loop, as a huge prompt could. Nobody takes the bystander over, and no crash is counted."""
    response_id = await queued(db, input=asking("/count 400"))
    async with worker(db, pubsub, lease_seconds=1.5, **SLOW) as w:
        job = w.start(response_id)
        await committed(db, response_id, 5)
        time.sleep(2.0)  # noqa: ASYNC251 (on purpose)
        assert await workers.release_dead_workers(db) == []
        assert await job.task is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert (row.attempt, row.crashes) == (1, 0)


async def test_every_chunk_holds_the_tokens_of_its_text(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input=asking("/say åéîøü"))
    async with worker(db, pubsub) as w:
        await w.run(response_id)
    reading = await logs.read(db, response_id)
    tokens = [token for chunk in reading.chunks for token in chunk.tokens]
    assert bytes(tokens[:-1]).decode() == "åéîøü"


async def on_its_last_chance(db: Database, asked: str) -> str:
    """A suspect, which its next crash without progress fails: an engine died under it before."""
    response_id = await queued(db, input=asking(asked))
    row = await claim(db, response_id, "dead")
    assert row is not None
    await claims.release(db, response_id, row.attempt, "dead", 1)
    return response_id


async def most_at_once(w: Worker, jobs: Sequence[Job], counts: Callable[[], bool]) -> int:
    """The most requests that the engine had at once, while `counts`, until all jobs have ended."""
    most = 0
    while not all(job.task.done() for job in jobs):
        most = max(most, w.engine.running if counts() else 0)
        await asyncio.sleep(0)
    assert [job.task.result() for job in jobs] == [Outcome.COMPLETED] * len(jobs)
    return most


async def test_a_suspect_has_the_engine_alone_until_it_has_committed_something(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "OTHERS_SECONDS", 0.1)
    ids = [await on_its_last_chance(db, "/count 40") for _ in range(3)]
    others = [await queued(db, input=asking("/count 300")) for _ in range(2)]
    async with worker(db, pubsub, **SLOW) as w:
        jobs = [w.start(response_id) for response_id in others]
        await until(lambda: w.engine.running == 2)
        jobs += [w.start(response_id) for response_id in ids]
        runs = w.runs._runs
        assert await most_at_once(w, jobs, lambda: any(run.is_alone for run in runs.values())) == 1
    for response_id, last in [*[(each, " 40") for each in ids], *[(each, " 300") for each in others]]:
        row = await whole(db, response_id)
        assert text_of(row).endswith(last)
        assert row.attempt == (2 if response_id in ids else 1), "the others paused, and lost no attempt"


async def test_suspects_that_made_progress_run_side_by_side(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "OTHERS_SECONDS", 0.1)
    ids = [await on_its_last_chance(db, "/count 400") for _ in range(3)]
    async with worker(db, pubsub, **SLOW) as w:
        assert await most_at_once(w, [w.start(response_id) for response_id in ids], lambda: True) == 3


async def test_a_suspect_that_hangs_holds_up_nobody_for_long(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "MAX_SECONDS", 0.5)
    async with worker(db, pubsub) as w:
        hanging = w.start(await on_its_last_chance(db, "/hang 0"))
        await until(lambda: w.engine.running == 1)
        assert await w.run(await queued(db)) is Outcome.COMPLETED
        assert await hanging.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED


async def test_the_first_responses_after_an_idle_engine_died_count_no_crash(db: Database, pubsub: PubSub) -> None:
    ids = [await queued(db), await on_its_last_chance(db, "/count 3")]
    async with worker(db, pubsub) as w:
        w.engine.die()
        outcomes = [await w.run(response_id) for response_id in ids]
        assert w.engine_deaths
    assert outcomes == [Outcome.RELEASED] * 2
    assert [(await row_of(db, response_id)).crashes for response_id in ids] == [0, 1]


async def test_a_poison_pill_fails_alone(db: Database, pubsub: PubSub) -> None:
    pill, bystander = await on_its_last_chance(db, "/die 0"), await on_its_last_chance(db, "/count 600")
    async with worker(db, pubsub, **SLOW) as w:
        first, second = w.start(pill), w.start(bystander)
        with pytest.raises(ResponseFailed, match="the engine died 2 times"):
            await first.task
        assert await second.task is Outcome.RELEASED
        assert await w.run(await queued(db)) is Outcome.RELEASED
    row = await row_of(db, bystander)
    assert (row.status, row.crashes <= 1) == (Status.IN_PROGRESS, True)  # none, if its trial came first
    async with worker(db, pubsub) as second_worker:
        assert await second_worker.run(bystander) is Outcome.COMPLETED


async def test_what_ends_engines_after_some_progress_is_alone_at_last_and_fails_and_no_other_does(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends each engine after six commits, whatever was committed before."""
    monkeypatch.setattr(suspects, "OTHERS_SECONDS", 0.1)
    pill, bystander = await queued(db, input=asking("/hang 1000")), await queued(db, input=asking("/count 500"))
    deaths = 0
    while (await row_of(db, pill)).status is not Status.FAILED:
        async with worker(db, pubsub, **SLOW) as w:
            jobs = [w.start(pill), w.start(bystander)]
            await until(lambda w=w: len(w.runs._runs) == 2)
            run, other = w.runs._runs[pill], w.runs._runs[bystander]
            await until(lambda run=run, other=other: run.commits >= 6 and not other.is_alone)
            w.engine.die()
            await asyncio.gather(*(job.task for job in jobs), return_exceptions=True)
            deaths += 1
    assert (await row_of(db, bystander)).crashes <= 1
    assert 2 <= deaths <= 6
    async with worker(db, pubsub) as w:
        assert await w.run(bystander) is Outcome.COMPLETED


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_only_kills_without_progress_count_and_progress_forgives_them(
    db: Database, pubsub: PubSub, status: str
) -> None:
    response_id = await queued(db, input=asking("/count 500" if status == "completed" else "/hang 0"))
    for attempt in range(1, 11):
        async with worker(db, pubsub, **SLOW) as w:
            job = w.start(response_id)
            await until(lambda w=w: w.engine.running)
            if status == "completed":
                await until(lambda w=w: w.runs._runs[response_id].commits)
            await release_all(db, w.lease.worker)
            w.runs.fence({response_id: attempt})
            await job.task
        assert (await row_of(db, response_id)).crashes == (0 if status == "completed" else attempt)
    if status == "completed":
        assert await endings.find_exhausted(db, max_crashes=2, max_claims=2) == []
        async with worker(db, pubsub) as w:
            assert await w.run(response_id) is Outcome.COMPLETED
    else:
        (exhausted,) = await endings.find_exhausted(db, max_crashes=2)
        assert (exhausted.attempts, exhausted.crashes) == (10, 10)
