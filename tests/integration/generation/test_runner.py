"""One response in a worker, on real Postgres and Valkey: from every claim to every outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.store.database import Database, StoreUnavailable
from app.store.responses import claims, endings, logs
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from tests.support.logs import row_of, text_of, whole
from tests.support.rows import claim, queued, release_all, released
from tests.support.waiting import until
from tests.support.worker import SLOW, NoDispatcher, Worker, committed, worker
from workers.engine.base import EngineDelta
from workers.generation import suspects
from workers.generation.outcome import Cancelled, Outcome, ResponseFailed


async def test_many_responses_at_once_run_once_each_however_often_their_messages_come(
    db: Database, pubsub: PubSub
) -> None:
    ids = [await queued(db, input=f"/count {number}") for number in range(32)]
    async with worker(db, pubsub, **SLOW) as w, worker(db, pubsub, **SLOW) as other:
        sent = [of.run(response_id) for response_id in ids for of in (w, w, other)]
        outcomes = Counter(await asyncio.gather(*sent))
    assert outcomes == {Outcome.COMPLETED: 32, Outcome.NOT_CLAIMED: 64}
    for number, response_id in enumerate(ids):
        row = await whole(db, response_id)
        assert (text_of(row), row.attempt) == (" ".join(str(n + 1) for n in range(number)), 1)


async def test_cancel_before_claim_never_reaches_the_engine(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input="/die 0")
    await endings.cancel(db, response_id, None)
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.CANCELLED
        assert w.engine_deaths == 0
    assert (await whole(db, response_id, Status.CANCELLED)).attempt == 0


async def test_the_fence_stops_a_cancelled_response_and_frees_the_engine(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input="/count 100000")
    async with worker(db, pubsub, **SLOW) as w:
        job = w.start(response_id)
        await committed(db, response_id, 8)
        await endings.cancel(db, response_id, None)
        assert await job.task is Outcome.CANCELLED
        assert w.engine.running == 0
        assert w.runs.attempts() == {}
    row = await whole(db, response_id, Status.CANCELLED)
    assert text_of(row).startswith("1 2")


async def test_a_revoked_job_cancels_its_row(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input="/hang 20")
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


async def test_a_revoke_during_the_claim_cancels_the_response(db: Database, pubsub: PubSub) -> None:
    async with worker(db, pubsub) as w:
        for turns in range(1, 11):
            response_id = await queued(db, input="/hang 5")
            job = w.start(response_id)
            for _ in range(turns):
                await asyncio.sleep(0)  # the claim has started
            await job.stop(Cancelled.REVOKED)
            assert (await row_of(db, response_id)).status is Status.CANCELLED


async def test_an_end_that_the_worker_did_not_ask_for_releases_the_response(db: Database, pubsub: PubSub) -> None:
    """vLLM ends all its requests as `abort` when it is told to stop: that is no answer."""
    response_id = await queued(db, input="/abort 200")
    async with worker(db, pubsub, **SLOW) as w:
        assert await w.run(response_id) is Outcome.RELEASED
        assert await released(db) == [response_id]
        assert await w.run(response_id) is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert (row.attempt, row.crashes, len(text_of(row))) == (2, 0, 200)


async def test_an_engine_error_fails_the_response_and_nothing_else(db: Database, pubsub: PubSub) -> None:
    bad, good = await queued(db, input="/fail 5"), await queued(db, input="/count 50")
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
    response_id = await queued(db, input="/count 100000")
    async with worker(db, pubsub, **SLOW) as w:
        job = w.start(response_id)
        await committed(db, response_id, 8)
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
        await db.execute(text(f"UPDATE chunks SET {column} WHERE first > 2"))
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
    response_id = await queued(db, input="/say Hello")
    async with worker(db, pubsub) as w:
        with pytest.raises(ResponseFailed):
            await w.run(response_id)
    assert text_of(await whole(db, response_id, Status.FAILED)) == "Hello"


async def test_a_prompt_longer_than_the_context_fails_before_any_output(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input="x" * 100)
    async with worker(db, pubsub, context_length=50) as w:
        with pytest.raises(ResponseFailed, match="context holds 50"):
            await w.run(response_id)
    row = await whole(db, response_id, Status.FAILED)
    assert row.error is not None
    assert row.error["code"] == "context_length_exceeded"
    assert row.output == []


async def test_a_prompt_of_a_session_leaves_room_for_its_answer(db: Database, pubsub: PubSub) -> None:
    """For as much as is asked for, but for no more than a quarter of the context."""
    async with worker(db, pubsub, context_length=1000) as w:
        fields = {"input": "x" * 800, "leaves_room": True}
        short, long = [await queued(db, **fields, max_output_tokens=tokens) for tokens in (8, 1000)]
        await w.run(short)
        with pytest.raises(ResponseFailed, match="beside its answer the model's context holds 750"):
            await w.run(long)


async def test_a_dead_engine_releases_its_responses_and_stops_the_worker(db: Database, pubsub: PubSub) -> None:
    killer, other = await queued(db, input="/die 5"), await queued(db, input="/count 100")
    async with worker(db, pubsub, **SLOW) as w:
        outcomes = await asyncio.gather(w.run(killer), w.run(other))
        assert outcomes == [Outcome.RELEASED, Outcome.RELEASED]
        assert w.engine_deaths == 2
        assert sorted(await released(db)) == sorted([killer, other])
    async with worker(db, pubsub) as second:
        assert await second.run(other) is Outcome.COMPLETED
    assert text_of(await whole(db, other)).endswith(" 100")


async def test_the_heartbeat_fences_a_run_that_hangs(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input="/hang 3")
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


async def test_a_claim_whose_reply_was_lost_runs_exactly_once(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = 3
    response_id, claim, lost = await queued(db, input="/count 100"), claims.claim_all, []

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
    whole_one, cancelled, failed, unclaimed = [await queued(db, input=each) for each in asked]
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


async def test_a_worker_that_reclaims_a_response_runs_only_the_new_attempt(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input="/hang 3")
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
        seen.update(await db.execute(text("SELECT lease_until FROM workers WHERE id = :id"), {"id": worker_id}))
        return len(seen) > count

    await until(enough)


async def on_its_last_chance(db: Database, asked: str) -> str:
    """A suspect, which its next crash without progress fails: an engine died under it before."""
    response_id = await queued(db, input=asked)
    row = await claim(db, response_id, "dead")
    assert row is not None
    await claims.release(db, response_id, row.attempt, "dead", 1)
    return response_id


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[Worker], list[tuple[int, bool]]]:
    """Notes at each delta of an engine how many requests it has, and whether one of the runs is to be alone."""

    def watch(w: Worker) -> list[tuple[int, bool]]:
        seen, generate, runs = list[tuple[int, bool]](), w.engine.generate, w.runs._runs

        async def noted(*args: Any, **kwargs: Any) -> AsyncGenerator[EngineDelta]:
            async with aclosing(generate(*args, **kwargs)) as deltas:
                async for delta in deltas:
                    seen.append((w.engine.running, any(run.is_alone for run in runs.values())))
                    yield delta

        monkeypatch.setattr(w.engine, "generate", noted)
        return seen

    monkeypatch.setattr(suspects, "OTHERS_SECONDS", 0.1)
    return watch


async def test_a_suspect_has_the_engine_alone_until_it_has_committed_something(
    db: Database, pubsub: PubSub, at_once: Callable[[Worker], list[tuple[int, bool]]]
) -> None:
    ids = [await on_its_last_chance(db, "/count 20") for _ in range(3)]
    others = [await queued(db, input="/count 150") for _ in range(2)]
    async with worker(db, pubsub, **SLOW) as w:
        seen = at_once(w)
        jobs = [w.start(response_id) for response_id in others]
        await until(lambda: w.engine.running == 2)
        jobs += [w.start(response_id) for response_id in ids]
        assert [await job.task for job in jobs] == [Outcome.COMPLETED] * 5
    assert {running for running, is_alone in seen if is_alone} == {1}
    for response_id in (*ids, *others):
        row = await whole(db, response_id)
        assert text_of(row).endswith(" 20" if response_id in ids else " 150")
        assert row.attempt == (2 if response_id in ids else 1), "the others paused, and lost no attempt"


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


async def test_the_first_engine_that_dies_under_it_says_nothing_of_a_response_that_got_on_and_the_second_does(
    db: Database, pubsub: PubSub, at_once: Callable[[Worker], list[tuple[int, bool]]]
) -> None:
    ids, trials = [await queued(db, input="/count 400") for _ in range(3)], list[bool]()
    for crashes in (0, 1):
        async with worker(db, pubsub, **SLOW) as w:
            seen, runs = at_once(w), w.runs._runs
            jobs = [w.start(response_id) for response_id in ids]
            await until(lambda runs=runs: len(runs) == 3 and all(run.commits for run in runs.values()))
            w.engine.die()
            assert [await job.task for job in jobs] == [Outcome.RELEASED] * 3
        assert [(await row_of(db, response_id)).crashes for response_id in ids] == [crashes] * 3
        trials.append(any(is_alone for _, is_alone in seen))
    async with worker(db, pubsub) as w:
        seen = at_once(w)
        assert [await job.task for job in [w.start(response_id) for response_id in ids]] == [Outcome.COMPLETED] * 3
    assert trials == [False, False]
    assert {running for running, is_alone in seen if is_alone} == {1}


async def test_a_request_that_ends_engines_after_progress_takes_others_along_twice_and_fails_alone(
    db: Database, pubsub: PubSub, at_once: Callable[[Worker], list[tuple[int, bool]]]
) -> None:
    pill = await queued(db, input="/die 30")
    others = [await queued(db, input="/count 300") for _ in range(4)]
    failed: BaseException | None = None
    engines = 0
    while failed is None:
        async with worker(db, pubsub, **SLOW) as w:
            at_once(w)
            jobs = [w.start(response_id) for response_id in (pill, *others)]
            await asyncio.wait([job.task for job in jobs])
            engines, failed = engines + 1, jobs[0].task.exception()
            assert {job.task.result() for job in jobs[1:]} <= {Outcome.RELEASED, Outcome.COMPLETED}
    assert isinstance(failed, ResponseFailed)
    assert engines == 3
    async with worker(db, pubsub) as w:
        for response_id in others:
            assert await w.run(response_id) is Outcome.COMPLETED
            assert text_of(await whole(db, response_id)).endswith(" 300")


async def test_a_poison_pill_fails_alone(db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "OTHERS_SECONDS", 0.1)  # if the bystander's trial comes first, it does not end before
    pill, bystander = await on_its_last_chance(db, "/die 0"), await on_its_last_chance(db, "/count 1000")
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


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_only_kills_without_progress_count_and_progress_forgives_them(
    db: Database, pubsub: PubSub, status: str
) -> None:
    response_id = await queued(db, input="/count 200" if status == "completed" else "/hang 0")
    for attempt in range(1, 5):
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
        assert (exhausted.attempts, exhausted.crashes) == (4, 4)
