"""The log on a real Postgres: the fence, what readers see, and how retention merges and deletes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from os import urandom

import pytest
from sqlalchemy import text

from app.protocol.events import frames
from app.protocol.events.deltas import Text
from app.protocol.status import Status
from app.sizes import grouped
from app.store import retention
from app.store.database import Database, StoreBusy, StoreLocked, StoreUnavailable
from app.store.responses import claims, endings, logs, lookup
from app.store.responses.logs import ItemTaken
from app.store.rows import ResponseRow
from tests.integration.store.common import answered, begun, blocked, conversation, held, sql
from tests.support.logs import row_of, text_of
from tests.support.requests import message
from tests.support.rows import WORKER, Writer, claim, claimed, merge_all, queued


async def numbers(db: Database, response_id: str, after: int = -1) -> list[int]:
    reading = await logs.read(db, response_id, after)
    return [event["sequence_number"] for chunk in reading.chunks for event in frames.decode(chunk.frames)]


async def finished(db: Database, words: int = 5) -> ResponseRow:
    return (await answered(db, *(f"{number} " for number in range(words)))).row


def soon(seconds: float = 1.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


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
    chunk = "INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)"
    values = {"id": row.id, "first": entry.chunk.first, "last": entry.chunk.last}
    async with db.begin() as first:
        await first.execute(text(f"{chunk} VALUES (:id, :first, :last, 1, false, '', '', 0)"), values)
        second = asyncio.create_task(logs.append(db, [entry]))
        await blocked(db)
    with pytest.raises(StoreBusy):
        await second
    await sql(db, "DELETE FROM chunks WHERE response_id = :id AND first > 0", id=row.id)
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
    """A cancel comes while an append is under way, which holds the first row and waits for the second one."""
    monkeypatch.setattr(endings, "PAUSES", ())
    first, second = sorted([await begun(db), await begun(db)], key=lambda each: each.row.id)
    async with held(db, second.row.id):
        appending = asyncio.create_task(logs.append(db, [each.say("in time", 1) for each in (first, second)]))
        await blocked(db)
        with pytest.raises(StoreLocked):
            await endings.cancel(db, first.row.id, None)
    assert await appending == {first.row.id, second.row.id}
    cancellation = await endings.cancel(db, first.row.id, None)
    assert cancellation is not None and cancellation.chunk is not None
    log = await numbers(db, first.row.id)
    assert log == list(range(len(log)))
    assert text_of(cancellation.row) == "in time"


async def test_an_ending_is_written_although_its_row_changes_meanwhile(db: Database) -> None:
    """One statement locks the row, appends to its log and changes it, although its snapshot of the row may be old."""
    writer = await begun(db)
    async with db.begin() as changing:
        await changing.execute(text("UPDATE responses SET sent_at = now() WHERE id = :id"), {"id": writer.row.id})
        ending = asyncio.create_task(logs.append(db, [writer.finish()]))
        await blocked(db)
    assert await ending == {writer.row.id}
    reading = await logs.read(db, writer.row.id)
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


async def test_an_append_on_a_connection_cut_at_any_moment_can_be_repeated(db: Database) -> None:
    """The cut may also come after Postgres has closed the connection and before the driver has noticed."""
    row = await claimed(db)
    writer = Writer(row)
    entries = [writer.begin(), *(writer.say(f"{number} ", number) for number in range(11))]
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


async def test_a_short_log_stays_as_it_is_until_retention_deletes_it_and_keeps_the_response(db: Database) -> None:
    short, long, cancelled = await finished(db), await begun(db, urandom(8192).hex()), await claimed(db)
    assert await logs.append(db, [long.finish()])
    await endings.cancel(db, cancelled.id, None)
    kept = [(await logs.read(db, row.id)).chunks for row in (short, cancelled)]
    assert await retention.merge_finished(db, soon()) == 1
    assert [len(chunk.tokens) for chunk in (await logs.read(db, long.row.id)).chunks] == [0]
    assert [(await logs.read(db, row.id)).chunks for row in (short, cancelled)] == kept
    assert await retention.delete_events(db, soon()) == 3
    assert await numbers(db, short.id) == await numbers(db, long.row.id) == []
    found = await row_of(db, short.id)
    assert (found.status, found.log) == (Status.COMPLETED, "deleted")
    assert await retention.delete_events(db, soon()) == 0


async def test_finished_logs_of_the_right_age_are_merged_and_a_locked_one_later(db: Database) -> None:
    rows = [await finished(db) for _ in range(3)]
    await claimed(db)
    await queued(db)
    await sql(db, "UPDATE responses SET log = 'live'")
    assert await retention.merge_finished(db, soon(-60.0)) == 0
    async with held(db, rows[1].id):
        assert await retention.merge_finished(db, soon()) == 2
    assert await retention.merge_finished(db, soon()) == 1


async def test_readers_during_a_merge_all_see_the_whole_log(db: Database) -> None:
    rows = [await finished(db) for _ in range(4)]
    expected = await numbers(db, rows[0].id)

    async def look(row: ResponseRow) -> None:
        for _ in range(10):
            assert await numbers(db, row.id) == expected

    await asyncio.gather(merge_all(db), merge_all(db), *(look(row) for row in rows))


async def _in_conversation(db: Database, item_id: str) -> Writer:
    """A response that was answered, and adds an item with this id to its conversation."""
    return await begun(db, "yes", conversation={"id": "conv_1"}, input=[{**message("Hi"), "id": item_id}])


async def test_an_item_whose_id_was_taken_meanwhile_is_not_lost_in_silence(db: Database) -> None:
    await conversation(db)
    first, second, other = [await _in_conversation(db, item_id) for item_id in ("msg_1", "msg_1", "msg_2")]
    assert await logs.append(db, [first.finish()]) == {first.row.id}
    taken = second.finish()
    with pytest.raises(ItemTaken):
        await logs.append(db, [taken, other.finish()])
    for writer in (second, other):
        assert (await row_of(db, writer.row.id)).status is Status.IN_PROGRESS, (
            "nothing of that transaction was committed"
        )


async def test_an_end_waits_for_nobody_who_deletes_its_conversation(db: Database) -> None:
    await conversation(db)
    writer = await _in_conversation(db, "msg_1")
    last = writer.finish()
    async with db.begin() as other:
        await other.execute(text("DELETE FROM conversations"))
        with pytest.raises(StoreLocked):
            await logs.append(db, [last])
    assert await logs.append(db, [last]) == {writer.row.id}
