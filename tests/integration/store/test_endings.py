"""Cancels, failures and deletions on a real Postgres: alone, together, against each other and against other locks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from app import sizes
from app.heavy import HEAVY, Threads
from app.protocol.events import frames
from app.protocol.status import TRANSITIONS, Status
from app.store import database, retention
from app.store.context.contents import context_items
from app.store.database import Database, StoreLocked
from app.store.responses import claims, endings, logs, lookup
from app.store.responses.inserts import Inserter
from app.store.rows import BatchPlace, EndResult
from tests.integration.store.common import answered, begun, conversation, held, sql
from tests.support import grammar
from tests.support.logs import events_of, row_of
from tests.support.requests import message
from tests.support.rows import WORKER, Writer, claim, claimed, merge_all, new_response, queued
from tests.support.waiting import PATIENCE_SECONDS, until

WAYS: dict[str, Callable[[Database, str], Any]] = {
    "cancel": lambda db, response_id: endings.cancel(db, response_id, None),
    "delete": lambda db, response_id: endings.delete(db, "default", response_id),
    "fail": lambda db, response_id: endings.fail(db, response_id, "server_error", "no"),
    "fail its own": lambda db, response_id: endings.fail(db, response_id, "server_error", "no", owner=(WORKER, 1)),
}


@pytest.mark.parametrize("before", ["queued", "in_progress", "in the middle"])
async def test_cancel_ends_the_log_with_a_whole_stream(db: Database, before: str) -> None:
    match before:
        case "queued":
            response_id = await queued(db)
        case "in_progress":
            response_id = (await claimed(db)).id
        case _:
            response_id = (await begun(db, "half a sent")).row.id
    cancellation = await endings.cancel(db, response_id, "default")
    assert cancellation is not None and cancellation.chunk is not None
    events = await events_of(db, response_id)
    grammar.check(events)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"] | {"error": None} == cancellation.row.as_object()
    assert (await logs.read(db, response_id)).ended


async def test_responses_cancelled_together_end_as_if_cancelled_one_by_one(db: Database) -> None:
    waiting, running, final = await queued(db), (await begun(db, "half a")).row, await queued(db)
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


async def test_a_log_that_cannot_be_read_stops_no_ending(db: Database) -> None:
    failing, poisoned = [(await begun(db, "half a")).row.id for _ in range(2)]
    good = (await claimed(db)).id
    await sql(db, "UPDATE chunks SET frames = 'poison' WHERE first = 2")
    assert await endings.fail(db, failing, "run_timeout", "it ran too long") is not None
    failed, log = await row_of(db, failing), await logs.read(db, failing)
    assert (failed.status, failed.output, log.ended) == (Status.FAILED, [], True)
    assert [chunk.first for chunk in log.chunks][1:] == [chunk.last + 1 for chunk in log.chunks][:-1]
    assert [event["type"] for event in frames.decode(log.chunks[-1].frames)] == ["error", "response.failed"]
    results = await endings.cancel_all(db, [poisoned, good], None)
    assert [result and result.row.status for result in results] == [Status.CANCELLED] * 2
    assert (await endings.delete(db, "default", poisoned)) is not None


async def test_only_the_owner_may_fail_its_response(db: Database) -> None:
    row = await claimed(db)
    for other in (("another", row.attempt), (WORKER, row.attempt + 1)):
        assert await endings.fail(db, row.id, "server_error", "no", owner=other) is None
    assert await endings.fail(db, row.id, "queue_timeout", "late", only=Status.QUEUED) is None, "it was claimed in time"
    assert await endings.fail(db, row.id, "server_error", "yes", owner=(WORKER, row.attempt)) is not None
    assert await endings.fail(db, row.id, "server_error", "late", owner=(WORKER, row.attempt)) is None


async def test_large_work_of_rows_and_logs_is_done_beside_the_event_loop(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = "x" * 2 * sizes.LARGE_BYTES
    ended = (await answered(db, large, input=[message(large)])).row
    continuing = await claimed(db, previous_response_id=ended.id)
    running, other = [(await begun(db, large)).row for _ in range(2)]
    last = (await begun(db, large, conversation={"id": await conversation(db)})).finish()
    works: dict[str, Callable[[], Any]] = {
        "cancel": lambda: endings.cancel(db, running.id, None),
        "delete": lambda: endings.delete(db, "default", other.id),
        "merge": lambda: merge_all(db),
        "find": lambda: lookup.find(db, ended.id),
        "context": lambda: context_items(db, continuing),
        "end": lambda: logs.append(db, [last]),
    }
    run, used = Threads.run, list[str]()

    async def noted(threads: Threads, work: Callable[[], Any]) -> Any:
        used.append(name)
        return await run(threads, work)

    monkeypatch.setattr(Threads, "run", noted)
    for name, work in works.items():
        assert await work(), name
    assert list(dict.fromkeys(used)) == list(works)
    used.clear()
    assert await lookup.find(db, await queued(db))
    assert not used, "what is small is not"


@pytest.mark.parametrize("how", ["cancel", "fail", "delete"])
async def test_an_ending_waits_for_threads_before_it_locks_its_rows(db: Database, how: str) -> None:
    writer = await begun(db, input=[message("x" * 400_000)])
    go = threading.Event()
    busy = [asyncio.create_task(HEAVY.run(lambda: go.wait(60))) for _ in range(2)]
    reads = [db.large_reads.take("another") for _ in range(database.LARGE_READS)]
    try:
        ending = asyncio.create_task(WAYS[how](db, writer.row.id))
        await until(lambda: ending.done() or db.large_reads._lines)
        appending = logs.append(db, [writer.say("goes on")])
        assert await asyncio.wait_for(appending, PATIENCE_SECONDS) == {writer.row.id}
        for each in reads:
            each.release()
        assert await asyncio.wait_for(ending, PATIENCE_SECONDS) is not None
    finally:
        go.set()
        await asyncio.gather(*busy)


async def test_one_locked_row_holds_up_no_other_of_a_batch(db: Database) -> None:
    ids = [await queued(db) for _ in range(4)]
    told: list[EndResult] = []
    async with held(db, ids[1]):
        found = await endings.cancel_all(db, [*ids, "resp_unknown"], "default", told.append)
    assert [type(each) for each in found] == [EndResult, StoreLocked, EndResult, EndResult, type(None)]
    assert {each.row.id for each in told} == {ids[0], ids[2], ids[3]}
    assert (await row_of(db, ids[1])).status is Status.QUEUED


@pytest.mark.parametrize("how", WAYS)
async def test_an_ending_waits_for_no_row_that_others_hold_and_tries_again_for_a_while(
    db: Database, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    row, tried = await claimed(db), asyncio.Event()

    def pauses() -> Iterator[float]:
        yield 0.0
        tried.set()
        yield from [0.01] * 1000

    async with held(db, row.id):
        monkeypatch.setattr(endings, "PAUSES", ())
        with pytest.raises(StoreLocked):
            await WAYS[how](db, row.id)
        monkeypatch.setattr(endings, "PAUSES", pauses())
        ending = asyncio.create_task(WAYS[how](db, row.id))
        await tried.wait()
        assert not ending.done()
    assert await ending


async def test_cancel_against_finish_has_one_winner_and_the_log_agrees_with_the_row(db: Database) -> None:
    winners = set()
    for turn in range(12):
        writer = await begun(db)
        racing = [logs.append(db, [writer.finish()]), endings.cancel(db, writer.row.id, None)]
        await asyncio.gather(*(racing if turn % 2 else racing[::-1]))
        events, row = await events_of(db, writer.row.id), await row_of(db, writer.row.id)
        grammar.check(events)
        assert events[-1]["response"]["status"] == row.status.value
        winners.add(row.status)
    assert winners <= {Status.COMPLETED, Status.CANCELLED}


async def test_a_delete_removes_row_and_events_and_fences_the_owner(db: Database) -> None:
    writer = await begun(db)
    deleted = await endings.delete(db, "default", writer.row.id)
    assert deleted is not None and deleted.chunk is not None
    assert await lookup.find(db, writer.row.id) is None
    reading = await logs.read(db, writer.row.id)
    assert (reading.chunks, reading.status, reading.ended) == ((), None, True)
    assert await logs.append(db, [writer.say("too late")]) == set()


async def test_nothing_ever_leaves_a_final_status(db: Database) -> None:
    for status in (Status.COMPLETED, Status.CANCELLED):
        writer = await begun(db)
        if status is Status.COMPLETED:
            await logs.append(db, [writer.finish()])
        row, cancellation = writer.row, await endings.cancel(db, writer.row.id, "default")
        assert cancellation is not None and cancellation.row.status is status
        assert (cancellation.chunk is None) is (status is Status.COMPLETED), "nothing is announced twice"
        await claim(db, row.id, "w")
        await claims.release(db, row.id, row.attempt, WORKER)
        await endings.fail(db, row.id, "server_error", "no")
        await logs.append(db, [Writer(row).begin()])
        assert (await row_of(db, row.id)).status is status
        assert all(not transition.sources & {status} for transition in TRANSITIONS.values())


async def test_retention_deletes_by_the_store_flag_and_keeps_unfinished_responses(db: Database) -> None:
    stored, unstored, unfinished = await queued(db), await queued(db, store=False), await queued(db)
    for response_id in (stored, unstored):
        await endings.cancel(db, response_id, None)
    ((now, past),) = await sql(db, "SELECT now() + interval '1 s', now() - interval '1 day'")
    assert await retention.delete_expired(db, stored=past, unstored=now) == 1
    assert await lookup.find(db, unstored) is None
    assert await retention.delete_expired(db, stored=now, unstored=now) == 1
    assert await lookup.find(db, stored) is None
    assert (await row_of(db, unfinished)).status is Status.QUEUED


@pytest.mark.parametrize(("code", "status"), [("server_error", "failed"), ("completion_window_expired", "cancelled")])
async def test_a_line_that_fails_with_any_text_is_a_result_of_its_batch(db: Database, code: str, status: str) -> None:
    await Inserter(db).create(replace(made := new_response(), place=BatchPlace("batch_a", 1, "a", 60.0)))
    await endings.fail(db, made.id, code, "a tool said \0")
    assert await sql(db, "SELECT status FROM batch_results") == [(status,)]
