"""The log on a real Postgres: the fence, what readers see, and how retention merges and deletes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from os import urandom
from typing import Any

import pytest
from sqlalchemy import make_url, text

from app import sizes
from app.protocol.events import frames
from app.protocol.events.deltas import Text
from app.protocol.status import Status
from app.sizes import grouped
from app.store import retention
from app.store.context import conversations
from app.store.context.conversations import ConversationRow
from app.store.database import Database, StoreBusy, StoreLocked, StoreUnavailable
from app.store.responses import claims, endings, logs, lookup
from app.store.responses.logs import Entry, ItemTaken
from app.store.rows import ResponseRow
from tests.support.requests import message
from tests.support.rows import WORKER, Writer, claim, claimed, merge_all, queued
from tests.support.services import Services
from tests.support.waiting import until


async def numbers(db: Database, response_id: str, after: int = -1) -> list[int]:
    reading = await logs.read(db, response_id, after)
    return [event["sequence_number"] for chunk in reading.chunks for event in frames.decode(chunk.frames)]


async def finished(db: Database, words: int = 5) -> ResponseRow:
    row = await claimed(db)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    for number in range(words):
        await logs.append(db, [writer.say(f"{number} ", number)])
    await logs.append(db, [writer.finish()])
    return row


async def _blocked(db: Database) -> bool:
    """Whether a connection waits for a lock."""
    async with db.autocommit() as connection:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return bool((await connection.execute(text(waiting))).scalar_one())


async def test_appended_chunks_are_read_in_order_with_their_tokens(db: Database) -> None:
    row = await claimed(db)
    writer = Writer(row)
    entries = [writer.begin(), writer.say("a", 7, 8), writer.say("b", 4_000_000_000)]
    for entry in entries:
        assert await logs.append(db, [entry]) == {row.id}
    reading = await logs.read(db, row.id)
    assert reading.chunks[1:] == tuple(entry.chunk for entry in entries)
    assert reading.status is Status.IN_PROGRESS


async def test_one_commit_appends_to_many_responses_and_refuses_only_fenced_ones(db: Database) -> None:
    rows = [await claimed(db) for _ in range(4)]
    await endings.cancel(db, rows[2].id, None)
    mine = await logs.append(db, [Writer(row).begin() for row in rows])
    assert mine == {rows[0].id, rows[1].id, rows[3].id}


async def test_the_last_chunk_and_the_final_row_are_one_commit(db: Database) -> None:
    row = await finished(db)
    final = await lookup.find(db, row.id)
    assert final is not None
    assert final.status is Status.COMPLETED
    reading = await logs.read(db, row.id)
    assert reading.chunks[-1].final
    assert frames.decode(reading.chunks[-1].frames)[-1]["response"] == final.as_object()


async def test_another_attempt_or_another_worker_writes_nothing(db: Database) -> None:
    row = await claimed(db)
    stale, stranger = Writer(row), Writer(row, worker="stranger")
    assert await logs.append(db, [stranger.begin()]) == set()
    await claims.release(db, row.id, row.attempt, WORKER)
    assert await logs.append(db, [stale.begin()]) == set()
    await claim(db, row.id, WORKER)
    assert await logs.append(db, [stale.entry([{"type": "x", "sequence_number": 2}])]) == set()
    assert await numbers(db, row.id) == [0, 1]


async def test_an_append_repeated_after_a_broken_connection_is_stored_once(db: Database) -> None:
    row = await claimed(db)
    entry = Writer(row).begin()
    assert await logs.append(db, [entry]) == {row.id}
    assert await logs.append(db, [entry]) == {row.id}
    assert await numbers(db, row.id) == [0, 1, 2]


async def test_a_repeated_append_that_meets_the_first_one_under_way_is_repeated_until_that_has_ended(
    db: Database,
) -> None:
    row = await claimed(db)
    entry = Writer(row).begin()
    statement, parameters = logs._statement([entry])
    async with db.pooled_driver_connection() as first:
        transaction = first.transaction()
        await transaction.start()
        await first.fetch(statement, *parameters)
        second = asyncio.create_task(logs.append(db, [entry]))
        waits = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'")

        async def is_waiting() -> bool:
            async with db.autocommit() as connection:
                return bool((await connection.execute(waits)).scalar_one())

        await until(is_waiting)
        await transaction.commit()
    with pytest.raises(StoreBusy):
        await second
    assert await logs.append(db, [entry]) == {row.id}
    assert await numbers(db, row.id) == [0, 1, 2]


async def test_another_chunk_with_the_same_number_is_refused_and_ends_nothing(db: Database) -> None:
    row = await claimed(db)
    first, other = Writer(row), Writer(row)
    assert await logs.append(db, [first.begin()]) == {row.id}
    other.stream.begin()
    ending = other.finish()
    assert await logs.append(db, [first.say("a", 1)]) == {row.id}
    assert await logs.append(db, [ending]) == set()
    assert (await logs.read(db, row.id)).status is Status.IN_PROGRESS


async def test_reading_after_any_number_returns_exactly_the_rest(db: Database) -> None:
    row = await claimed(db)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    events = writer.stream.feed(Text("x")) + writer.stream.feed(Text("y"))
    await logs.append(db, [writer.entry(events)])
    await logs.append(db, [writer.finish()])
    every = await numbers(db, row.id)
    for after in range(-1, len(every) + 2):
        assert await numbers(db, row.id, after) == [number for number in every if number > after]


async def test_nothing_lands_after_a_reader_saw_the_final_row(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """FOR SHARE is for this race: a cancel ends the response while an append is under way."""
    monkeypatch.setattr(endings, "PAUSES", ())
    row = await claimed(db)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    statement, parameters = logs._statement([writer.say("in time", 1)])
    async with db.driver_connection() as connection, connection.transaction():
        appended = await connection.fetch(statement, *parameters)
        assert [found["response_id"] for found in appended] == [row.id]
        with pytest.raises(StoreLocked):
            await endings.cancel(db, row.id, None)
    cancellation = await endings.cancel(db, row.id, None)
    assert cancellation is not None
    assert cancellation.chunk is not None
    log = await numbers(db, row.id)
    assert log == list(range(len(log)))
    assert cancellation.row.output is not None
    assert cancellation.row.output[0]["content"][0]["text"] == "in time"


async def test_an_ending_is_written_although_its_row_changes_meanwhile(db: Database) -> None:
    """One statement locks the row, appends to its log and changes it, although its snapshot of the row may be old."""
    row = await claimed(db)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    async with db.begin() as changing:
        await changing.execute(text("UPDATE responses SET sent_at = now() WHERE id = :id"), {"id": row.id})
        ending = asyncio.create_task(logs.append(db, [writer.finish()]))
        await until(lambda: _blocked(db), what="the append waits for the change")
    assert await ending == {row.id}
    reading = await logs.read(db, row.id)
    assert reading.status is Status.COMPLETED
    assert reading.chunks[-1].final


async def test_a_batch_ends_some_responses_and_continues_others(db: Database) -> None:
    rows = [await claimed(db) for _ in range(4)]
    writers = [Writer(row) for row in rows]
    await logs.append(db, [writer.begin() for writer in writers])
    await endings.cancel(db, rows[3].id, None)
    mine = await logs.append(
        db, [writers[0].finish(), writers[1].say("more", 1), writers[2].finish(), writers[3].finish()]
    )
    assert mine == {row.id for row in rows[:3]}
    found = [await lookup.find(db, row.id) for row in rows]
    expected = [Status.COMPLETED, Status.IN_PROGRESS, Status.COMPLETED, Status.CANCELLED]
    assert [row.status for row in found if row is not None] == expected


async def test_a_connection_that_breaks_under_an_append_is_replaced(db: Database) -> None:
    row = await claimed(db)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    async with db.driver_connection() as connection:
        pid = connection.get_server_pid()
    async with db.begin() as locking:
        await locking.execute(text("SELECT 1 FROM responses WHERE id = :id FOR UPDATE"), {"id": row.id})
        entry = writer.say("a", 1)
        appending = asyncio.create_task(logs.append(db, [entry]))
        await until(lambda: _blocked(db), what="the append waits for the row")
        await locking.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        with pytest.raises(StoreUnavailable):
            await appending
    assert await logs.append(db, [entry]) == {row.id}
    assert await numbers(db, row.id) == [0, 1, 2, *range(entry.chunk.first, entry.chunk.last + 1)]


async def test_an_idle_connection_that_was_cut_is_replaced_without_an_error(db: Database) -> None:
    row = await claimed(db)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    async with db.driver_connection() as connection:
        cut = connection
    async with db.autocommit() as other:
        await other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": cut.get_server_pid()})
    await until(cut.is_closed, what="the connection is lost")
    assert await logs.append(db, [writer.say("a", 1)]) == {row.id}


async def test_an_append_on_a_connection_cut_at_any_moment_can_be_repeated(db: Database) -> None:
    """The cut may also come after Postgres has closed the connection and before the driver has noticed."""
    row = await claimed(db)
    writer = Writer(row)
    entries = [writer.begin(), *(writer.say(f"{number} ", number) for number in range(30))]
    async with db.autocommit() as other:
        for turns, entry in enumerate(entries):
            async with db.driver_connection() as connection:
                pid = connection.get_server_pid()
            await other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            for _ in range(turns % 6):
                await asyncio.sleep(0)
            appended = None
            while appended is None:
                with suppress(StoreUnavailable):
                    appended = await logs.append(db, [entry])
            assert appended == {row.id}
    log = await numbers(db, row.id)
    assert log == list(range(len(log)))


async def test_an_append_without_a_database_raises_store_unavailable(services: Services) -> None:
    url = make_url(services.database_url).set(database="absent")
    absent = Database(url.render_as_string(hide_password=False), 1)
    with pytest.raises(StoreUnavailable):
        async with absent.driver_connection():
            pass
    await absent.close()


async def test_merging_changes_nothing_that_a_reader_can_see(db: Database) -> None:
    row = await finished(db)
    before = {after: await numbers(db, row.id, after) for after in range(-1, 12)}
    original = b"".join(chunk.frames for chunk in (await logs.read(db, row.id)).chunks)
    assert await merge_all(db) == 1
    reading = await logs.read(db, row.id)
    assert [chunk.final for chunk in reading.chunks] == [True]  # The log is smaller than a page.
    assert reading.chunks[0].frames == original
    assert {after: await numbers(db, row.id, after) for after in range(-1, 12)} == before
    assert await retention.merge_finished(db, datetime.now(UTC) + timedelta(seconds=1)) == 0


@pytest.mark.parametrize("page_bytes", [1, 3000, 2**20])
async def test_a_page_of_a_merged_log_has_whole_chunks(
    db: Database, monkeypatch: pytest.MonkeyPatch, page_bytes: int
) -> None:
    monkeypatch.setattr(retention, "LOG_PAGE_BYTES", page_bytes)
    rows = [await finished(db, words) for words in (1, 5, 3, 40)]
    before = [[chunk.frames for chunk in (await logs.read(db, row.id)).chunks] for row in rows]
    assert await merge_all(db) == len(rows)
    for row, chunks in zip(rows, before, strict=True):
        pages = [chunk.frames for chunk in (await logs.read(db, row.id)).chunks]
        assert b"".join(pages) == b"".join(chunks)
        assert len(pages) == len(grouped({n: len(each) for n, each in enumerate(chunks)}, page_bytes))
        assert await numbers(db, row.id, 3) == (await numbers(db, row.id))[4:]


async def test_a_short_log_stays_as_it_is_until_retention_deletes_it(db: Database) -> None:
    short, long = await finished(db), await claimed(db)
    writer = Writer(long)
    for entry in (writer.begin(), writer.say(urandom(8192).hex(), *range(100)), writer.finish()):
        await logs.append(db, [entry])
    cancelled = await claimed(db)
    await endings.cancel(db, cancelled.id, None)
    kept = [(await logs.read(db, row.id)).chunks for row in (short, cancelled)]
    soon = datetime.now(UTC) + timedelta(seconds=1)
    assert await retention.merge_finished(db, soon) == 1
    assert [len(chunk.tokens) for chunk in (await logs.read(db, long.id)).chunks] == [0]
    assert [(await logs.read(db, row.id)).chunks for row in (short, cancelled)] == kept
    assert await retention.delete_events(db, soon) == 3


async def test_a_log_whose_row_is_locked_is_merged_later_and_holds_up_no_other(db: Database) -> None:
    rows = [await finished(db) for _ in range(3)]
    async with db.begin() as connection:
        await connection.execute(text("UPDATE responses SET log = 'live'"))
    async with db.begin() as other:
        await other.execute(text("SELECT FROM responses WHERE id = :id FOR UPDATE"), {"id": rows[1].id})
        assert await retention.merge_finished(db, datetime.now(UTC) + timedelta(seconds=1)) == 2
    assert await retention.merge_finished(db, datetime.now(UTC) + timedelta(seconds=1)) == 1


async def test_only_finished_logs_of_the_right_age_are_merged(db: Database) -> None:
    await finished(db)
    await claimed(db)
    await queued(db)
    async with db.begin() as connection:
        await connection.execute(text("UPDATE responses SET log = 'live'"))
    assert await retention.merge_finished(db, datetime.now(UTC) - timedelta(seconds=60)) == 0
    assert await retention.merge_finished(db, datetime.now(UTC) + timedelta(seconds=1)) == 1


async def test_retention_of_events_keeps_the_response(db: Database) -> None:
    row = await finished(db)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    await merge_all(db)
    assert await retention.delete_events(db, soon) == 1
    assert await numbers(db, row.id) == []
    kept = await lookup.find(db, row.id)
    assert kept is not None
    assert (kept.status, kept.log) == (Status.COMPLETED, "deleted")
    assert await retention.delete_events(db, soon) == 0


async def test_readers_during_a_merge_all_see_the_whole_log(db: Database) -> None:
    rows = [await finished(db) for _ in range(10)]
    expected = await numbers(db, rows[0].id)

    async def look(row: ResponseRow) -> None:
        for _ in range(10):
            assert await numbers(db, row.id) == expected

    await asyncio.gather(merge_all(db), merge_all(db), *(look(row) for row in rows))


async def test_an_append_reads_no_response_but_its_own(db: Database) -> None:
    """Old statistics say that hardly anything runs. Postgres must not choose an index of running responses for that."""
    waiting = [await queued(db) for _ in range(300)]
    async with db.autocommit() as connection:
        await connection.execute(text("VACUUM ANALYZE responses"))
    rows = [await claim(db, response_id, WORKER) for response_id in waiting]
    writers = [Writer(row) for row in rows[:8] if row is not None]
    begun = [writer.begin() for writer in writers]
    ended = [writer.finish() for writer in writers]
    plans = []
    async with db.driver_connection() as connection:
        for statement, parameters in map(logs._statement, (begun, ended)):
            plans += await connection.fetch(f"EXPLAIN {statement}", *parameters)
    assert statement == logs._APPEND_AND_END
    plan = "\n".join(row[0] for row in plans)
    for index in ("responses_worker_idx", "responses_released_idx"):
        assert index not in plan


async def test_large_logs_are_merged_beside_the_event_loop(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LARGE_BYTES", 1)
    row = await claimed(db)
    writer = Writer(row)
    for entry in (writer.begin(), writer.say("answer"), writer.finish()):
        await logs.append(db, [entry])
    threads, paged = [], retention._pages

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return paged(*arguments)

    monkeypatch.setattr(retention, "_pages", watched)
    assert await merge_all(db) == 1
    assert len(threads) == 1 and threading.main_thread() not in threads


async def _in_conversation(db: Database, item_id: str) -> Writer:
    """A response that was answered, and adds an item with this id to its conversation."""
    item = {**message("Hi"), "id": item_id}
    row = await claimed(db, conversation={"id": "conv_1"}, input=[item])
    writer = Writer(row)
    for entry in (writer.begin(), writer.say("yes")):
        await logs.append(db, [entry])
    return writer


@pytest.fixture
async def conversation(db: Database) -> str:
    await conversations.create(db, ConversationRow("conv_1", "default", {}, datetime.now(UTC)), [])
    return "conv_1"


async def test_an_item_whose_id_was_taken_meanwhile_is_not_lost_in_silence(db: Database, conversation: str) -> None:
    first, second, other = [await _in_conversation(db, item_id) for item_id in ("msg_1", "msg_1", "msg_2")]
    assert await logs.append(db, [first.finish()]) == {first.row.id}
    taken = second.finish()
    with pytest.raises(ItemTaken):
        await logs.append(db, [taken, other.finish()])
    for writer in (second, other):
        found = await lookup.find(db, writer.row.id)
        assert found is not None and found.status is Status.IN_PROGRESS, "nothing of that transaction was committed"


async def test_an_end_waits_for_nobody_who_deletes_its_conversation(db: Database, conversation: str) -> None:
    writer = await _in_conversation(db, "msg_1")
    last = writer.finish()
    async with db.begin() as other:
        await other.execute(text("DELETE FROM conversations"))
        with pytest.raises(StoreLocked):
            await logs.append(db, [last])
    assert await logs.append(db, [last]) == {writer.row.id}


async def test_the_items_of_a_large_end_are_encoded_before_its_row_is_locked(
    db: Database, conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "LARGE_BYTES", 1)
    writer = await _in_conversation(db, "msg_1")
    last, go = writer.finish(), threading.Event()
    encode, encoding = logs._item_parameters, threading.Event()

    def slowly(entries: Sequence[Entry]) -> list[list[Any]]:
        encoding.set()
        go.wait(60)
        return encode(entries)

    monkeypatch.setattr(logs, "_item_parameters", slowly)
    ending = asyncio.create_task(logs.append(db, [last]))
    try:
        await until(encoding.is_set)
        async with db.begin() as other:
            await other.execute(text("SELECT FROM responses FOR UPDATE NOWAIT"))
    finally:
        go.set()
    assert await ending == {writer.row.id}
