"""Readers get every committed chunk once and in order, whatever happens to pub/sub."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from app.protocol.events.chunk import Chunk, LogSlice
from app.protocol.status import Status
from app.store.database import Database
from app.store.responses import endings, logs
from app.store.rows import ResponseRow
from app.streaming.follow import LogFollower
from app.streaming.pubsub import PubSub
from app.streaming.subscription import BACKLOG, Subscription
from tests.support.rows import Writer, claimed
from tests.support.waiting import PATIENCE_SECONDS, until

NEVER = 3600.0


async def collect(db: Database, subscription: Subscription, row: ResponseRow, after: int = -1, **times: float) -> bytes:
    read = partial(logs.read, db, row.id)
    return b"".join(
        [chunk.frames async for chunk in LogFollower(read, subscription, after, **times).follow() if chunk is not None]
    )


async def say(db: Database, pubsub: PubSub | None, writer: Writer, words: int) -> None:
    """Appends and publishes, a commit at a time."""
    entries = [writer.begin(), *(writer.say(f"{number} ", number) for number in range(words)), writer.finish()]
    for entry in entries:
        assert await logs.append(db, [entry])
        if pubsub is not None:
            await pubsub.publish([entry.chunk])


async def logged(db: Database, row: ResponseRow, after: int = -1) -> bytes:
    return b"".join(chunk.frames for chunk in (await logs.read(db, row.id, after)).chunks)


@pytest.mark.parametrize("times", [0, 2], ids=["missed", "received twice"])
async def test_a_chunk_that_is_missed_or_received_twice_is_read_once(db: Database, pubsub: PubSub, times: int) -> None:
    row = await claimed(db)
    writer = Writer(row)
    async with pubsub.subscribe(row.id) as subscription:
        reading = asyncio.create_task(collect(db, subscription, row, poll=NEVER))
        entries = writer.begin(), writer.say("received", 1), writer.say("a", 2), writer.finish()
        for entry, published in zip(entries, (1, 1, times, 1), strict=True):
            await logs.append(db, [entry])
            await pubsub.publish([entry.chunk] * published)
        assert await reading == await logged(db, row)


OPENING = Chunk("resp_1", 0, 1, 0, (), b"opening")
END = Chunk("resp_1", 2, 2, 1, (), b"end", final=True)


async def test_a_reader_confirmed_before_the_first_commit_does_not_read_the_log(pubsub: PubSub) -> None:
    async def read(_: int) -> LogSlice:
        raise AssertionError("the log was read")

    async with pubsub.subscribe("resp_1") as subscription:
        await until(lambda: subscription.is_complete)
        chunks = LogFollower(read, subscription, poll=NEVER).follow(OPENING)
        assert await anext(chunks) is OPENING
        await pubsub.publish([END])
        assert [chunk.frames async for chunk in chunks if chunk is not None] == [b"end"]


async def test_a_reader_not_confirmed_yet_reads_the_log(unreachable: PubSub) -> None:
    async def read(_: int) -> LogSlice:
        return LogSlice((OPENING, END), Status.COMPLETED)

    async with unreachable.subscribe("resp_1") as subscription:
        chunks = LogFollower(read, subscription, poll=NEVER).follow(OPENING)
        assert [chunk.frames async for chunk in chunks if chunk is not None] == [b"opening", b"end"]


async def test_a_reader_too_slow_for_the_backlog_still_gets_everything(db: Database, pubsub: PubSub) -> None:
    row = await claimed(db)
    writer = Writer(row)
    async with pubsub.subscribe(row.id) as subscription:
        chunks = LogFollower(partial(logs.read, db, row.id), subscription, poll=NEVER).follow()
        first = await anext(chunks)
        assert first is not None
        await say(db, pubsub, writer, BACKLOG + 50)
        rest = [chunk.frames async for chunk in chunks if chunk is not None]
        assert first.frames + b"".join(rest) == await logged(db, row)


async def test_a_deleted_response_ends_readers_that_missed_the_message(db: Database, unreachable: PubSub) -> None:
    row = await claimed(db)
    async with unreachable.subscribe(row.id) as subscription:
        reading = asyncio.create_task(collect(db, subscription, row, poll=0.02))
        await endings.delete(db, "default", row.id)
        await asyncio.wait_for(reading, PATIENCE_SECONDS)
