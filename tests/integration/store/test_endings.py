"""Endings on a real Postgres: several cancels together, and what they leave in memory."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Row, text

from app import sizes
from app.heavy import HEAVY
from app.protocol.events import frames
from app.protocol.events.frames import Event
from app.protocol.events.machine import ResponseStream
from app.protocol.status import Status
from app.store import database
from app.store.database import Database, StoreLocked, StoreUnavailable, retry_until_available
from app.store.responses import endings, logs, lookup
from app.store.rows import EndResult, ResponseRow, parsed_row
from tests.support.cycles import no_collector
from tests.support.requests import message
from tests.support.rows import WORKER, Writer, claim, claimed, queued
from tests.support.waiting import PATIENCE_SECONDS, until


async def row_of(db: Database, response_id: str) -> ResponseRow:
    row = await lookup.find(db, response_id)
    assert row is not None
    return row


async def test_responses_cancelled_together_end_as_if_cancelled_one_by_one(db: Database) -> None:
    waiting, running, final = await queued(db), await claimed(db), await queued(db)
    writer = Writer(running)
    await logs.append(db, [writer.begin()])
    await logs.append(db, [writer.say("half a")])
    await endings.cancel(db, final, None)
    foreign = await queued(db, project="theirs")

    wanted = [waiting, running.id, final, foreign, "resp_unknown", waiting]
    first, second, third, theirs, unknown, again = await endings.cancel_all(db, wanted, "default")
    assert theirs is None and unknown is None
    assert first and second and third and again
    assert first.chunk and second.chunk and not third.chunk and not again.chunk, "each ending is announced once"
    for found in (first, second, third, again):
        assert await lookup.find(db, found.row.id) == replace(found.row, log="merged")
        assert found.row.status is Status.CANCELLED
    assert "half a" in str(second.row.output)
    assert (await logs.read(db, running.id)).chunks[-1] == second.chunk
    assert (await row_of(db, foreign)).status is Status.QUEUED


async def test_only_kept_responses_are_cancelled_if_the_caller_says_so(db: Database) -> None:
    kinds = [{"background": False, "store": False}, {"background": False}, {"background": True, "store": False}]
    ids = [await queued(db, **kind) for kind in kinds]
    refused, *ended = await endings.cancel_all(db, ids, "default", only_kept=True)
    assert refused is None
    assert all(each is not None and each.chunk is not None for each in ended)
    assert (await row_of(db, ids[0])).status is Status.QUEUED


@pytest.mark.parametrize("how", ["complete", "cancel", "fail", "cancel while queued"])
async def test_headers_for_mcp_servers_are_erased_with_the_ending(db: Database, how: str) -> None:
    """Also of a request that Postgres cannot look into, and nothing else of it changes."""
    request: dict[str, Any] = {"secrets": {"tests": "lh1_sealed"}, "input": [message("\0")], "tools": [{"secrets": {}}]}
    response_id = await queued(db, **request)
    sent = (await row_of(db, response_id)).request
    assert sent["secrets"] == request["secrets"]
    if how != "cancel while queued":
        row = await claim(db, response_id, WORKER)
        assert row is not None
        writer = Writer(row)
        assert await logs.append(db, [writer.begin()])
        assert (await row_of(db, response_id)).request == sent, "the next attempt needs them"
        if how == "complete":
            assert await logs.append(db, [writer.finish()])
    if how == "fail":
        await endings.fail(db, response_id, "server_error", "x")
    elif how.startswith("cancel"):
        (result,) = await endings.cancel_all(db, [response_id], None)
        assert result is not None and replace(result.row, log="merged") == await row_of(db, response_id)
    ended = await row_of(db, response_id)
    assert ended.finished_at is not None
    assert ended.request == {**sent, "secrets": {}}


async def running_with_a_poisoned_log(db: Database) -> ResponseRow:
    row = await claimed(db)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    await logs.append(db, [writer.say("half a")])
    async with db.begin() as connection:
        poison = "UPDATE chunks SET frames = 'poison' WHERE response_id = :id AND first = 2"
        await connection.execute(text(poison), {"id": row.id})
    return row


async def test_a_log_that_cannot_be_read_fails_its_own_response_without_its_output(db: Database) -> None:
    row = await running_with_a_poisoned_log(db)
    assert await endings.fail(db, row.id, "run_timeout", "it ran too long") is not None
    failed = await row_of(db, row.id)
    assert (failed.status, failed.output) == (Status.FAILED, [])
    log = await logs.read(db, row.id)
    assert log.ended
    assert [chunk.first for chunk in log.chunks][1:] == [chunk.last + 1 for chunk in log.chunks][:-1]
    events = [event["type"] for event in frames.decode(log.chunks[-1].frames)]
    assert events == ["error", "response.failed"]


async def test_a_log_that_cannot_be_read_does_not_stop_other_cancels(db: Database) -> None:
    poisoned, good = await running_with_a_poisoned_log(db), await claimed(db)
    results = await endings.cancel_all(db, [poisoned.id, good.id], None)
    assert [result and result.row.status for result in results] == [Status.CANCELLED] * 2
    assert (await endings.delete(db, "default", poisoned.id)) is not None


async def test_only_the_owner_may_fail_its_response(db: Database) -> None:
    row = await claimed(db)
    for other in (("another", row.attempt), (WORKER, row.attempt + 1)):
        assert await endings.fail(db, row.id, "server_error", "no", owner=other) is None
    assert await endings.fail(db, row.id, "server_error", "yes", owner=(WORKER, row.attempt)) is not None
    assert await endings.fail(db, row.id, "server_error", "late", owner=(WORKER, row.attempt)) is None


async def test_long_logs_and_large_rows_are_cancelled_in_groups_and_off_the_loop(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "MAX_LOG_BYTES", 1)
    monkeypatch.setattr(sizes, "LARGE_BYTES", 1)
    threads, restore = [], ResponseStream.restore

    def watched(events: Iterable[Event], next_sequence: int) -> ResponseStream:
        threads.append(threading.current_thread())
        return restore(events, next_sequence)

    def parsed(row: Row[Any]) -> ResponseRow:
        threads.append(threading.current_thread())
        return parsed_row(row)

    monkeypatch.setattr(ResponseStream, "restore", watched)
    monkeypatch.setattr(endings, "parsed_row", parsed)
    ids = [await queued(db) for _ in range(3)]
    assert list(await endings.sizes_of(db, [*ids, ids[0]])) == ids
    results = await endings.cancel_all(db, ids, None)
    assert [result and result.row.status for result in results] == [Status.CANCELLED] * 3
    assert len(threads) == 6 and threading.main_thread() not in threads


async def test_large_requests_are_cancelled_in_groups_by_their_bytes(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "MAX_LOG_BYTES", 100_000)
    ids = [await queued(db, input=[message("x" * 40_000)]) for _ in range(4)]
    assert sizes.grouped(await endings.sizes_of(db, ids), endings.MAX_LOG_BYTES) == [ids[:2], ids[2:]]


@pytest.mark.parametrize("how", ["cancel", "fail", "delete"])
async def test_an_ending_waits_for_threads_before_it_locks_its_rows(db: Database, how: str) -> None:
    row = await claimed(db, input=[message("x" * 400_000)])
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    go = threading.Event()
    busy = [asyncio.create_task(HEAVY.run(lambda: go.wait(60))) for _ in range(2)]
    reads = [db.large_reads.take("another") for _ in range(database.LARGE_READS)]
    ways: dict[str, Callable[[], Any]] = {
        "cancel": lambda: endings.cancel(db, row.id, None),
        "fail": lambda: endings.fail(db, row.id, "server_error", "no"),
        "delete": lambda: endings.delete(db, row.project, row.id),
    }
    try:
        ending = asyncio.create_task(ways[how]())
        await until(lambda: ending.done() or db.large_reads._lines)
        assert await asyncio.wait_for(logs.append(db, [writer.say("goes on")]), PATIENCE_SECONDS) == {row.id}
        for each in reads:
            each.release()
        assert await asyncio.wait_for(ending, PATIENCE_SECONDS) is not None
    finally:
        go.set()
        await asyncio.gather(*busy)


@asynccontextmanager
async def held(db: Database, *response_ids: str) -> AsyncIterator[None]:
    """Another transaction has locked these rows."""
    async with db.begin() as other:
        ids = {"ids": list(response_ids)}
        await other.execute(text("SELECT FROM responses WHERE id = ANY(:ids) FOR UPDATE"), ids)
        yield


async def test_one_locked_row_holds_up_no_other_of_a_batch(db: Database) -> None:
    ids = [await queued(db) for _ in range(4)]
    told: list[EndResult] = []
    async with held(db, ids[1]):
        found = await endings.cancel_all(db, [*ids, "resp_unknown"], "default", told.append)
    assert [type(each) for each in found] == [EndResult, StoreLocked, EndResult, EndResult, type(None)]
    assert {each.row.id for each in told} == {ids[0], ids[2], ids[3]}
    assert (await row_of(db, ids[1])).status is Status.QUEUED


@pytest.mark.parametrize("how", ["cancel", "delete", "fail", "fail its own"])
async def test_an_ending_waits_for_no_row_that_others_hold(
    db: Database, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(endings, "PAUSES", ())
    row = await claimed(db)
    ways: dict[str, Callable[[], Any]] = {
        "cancel": lambda: endings.cancel(db, row.id, None),
        "delete": lambda: endings.delete(db, "default", row.id),
        "fail": lambda: endings.fail(db, row.id, "server_error", "no"),
        "fail its own": lambda: endings.fail(db, row.id, "server_error", "no", owner=(WORKER, row.attempt)),
    }
    async with held(db, row.id):
        with pytest.raises(StoreLocked):
            await ways[how]()
    assert await ways[how]()


@pytest.mark.parametrize("how", ["cancel", "delete", "fail"])
async def test_an_ending_goes_on_once_the_row_is_free(db: Database, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    row, tries = await claimed(db), list[str]()
    monkeypatch.setattr(endings, "uniform", lambda *_: tries.append(how) or 1.0)
    ways: dict[str, Callable[[], Any]] = {
        "cancel": lambda: endings.cancel(db, row.id, None),
        "delete": lambda: endings.delete(db, "default", row.id),
        "fail": lambda: endings.fail(db, row.id, "server_error", "no"),
    }
    async with held(db, row.id):
        ending = asyncio.create_task(ways[how]())
        await until(lambda: tries)
    assert await ending


async def test_cancels_that_end_half_way_are_announced_and_the_rest_is_told_why(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "MAX_LOG_BYTES", 1)
    ids, told = [await queued(db) for _ in range(3)], list[EndResult]()
    end_rows, calls = endings._end_rows, 0

    async def away_later(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise StoreUnavailable("away")
        return await end_rows(*arguments, **options)

    monkeypatch.setattr(endings, "_end_rows", away_later)
    found = await endings.cancel_all(db, ids, "default", told.append)
    assert [type(each) for each in found] == [EndResult, StoreUnavailable, StoreUnavailable]
    assert [each.row.id for each in told] == [ids[0]]
    assert calls == 2, "nobody waits for each of them while Postgres is away"


async def test_two_batches_of_cancels_in_opposite_order_do_not_deadlock(db: Database) -> None:
    ids = [await queued(db) for _ in range(16)]
    told: list[str] = []

    async def cancel(order: list[str]) -> None:
        for result in await endings.cancel_all(db, order, None, lambda result: told.append(result.row.id)):
            if isinstance(result, StoreUnavailable):
                raise result

    await asyncio.gather(*(retry_until_available(partial(cancel, order)) for order in (ids, ids[::-1])))
    assert sorted(told) == sorted(ids)


async def test_reading_cancelling_and_deleting_leave_nothing_to_the_garbage_collector(db: Database) -> None:
    for count in (1, 30):  # the first round creates objects that stay
        waiting = [await queued(db) for _ in range(count)]
        with no_collector():
            for response_id in waiting:
                await lookup.get_flags(db, "default", response_id)
                await lookup.find(db, response_id)
                await lookup.get_by_key(db, "default", "unknown")
                await endings.cancel(db, response_id, "default")
                await endings.delete(db, "default", response_id)
            left = gc.collect()
    assert left < 30
