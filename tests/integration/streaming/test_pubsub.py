"""Readers: everything that is committed, once and in order, whatever the doorbell does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import redis.asyncio
from redis.asyncio.client import PubSub as RedisPubSub

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk, LogSlice
from app.protocol.status import Status
from app.store import journal, responses
from app.store.database import Database
from app.store.rows import ResponseRow
from app.streaming.pubsub import BACKLOG, PubSub, PubSubUnavailable, Subscription
from tests.support.rows import Writer, claimed
from tests.support.waiting import until

NEVER = 3600.0


@pytest.fixture
async def deaf() -> AsyncIterator[PubSub]:
    """A relay whose Redis is not there."""
    pubsub = PubSub("redis://127.0.0.1:9/0")
    await pubsub.start()
    yield pubsub
    await pubsub.close()


async def collect(db: Database, subscription: Subscription, row: ResponseRow, after: int = -1, **times: float) -> bytes:
    read = partial(journal.read, db, row.id)
    return b"".join([chunk.frames async for chunk in subscription.follow(read, after, **times) if chunk is not None])


async def say(db: Database, pubsub: PubSub | None, writer: Writer, words: int) -> None:
    """Appends and publishes, a commit at a time."""
    entries = [writer.begin(), *(writer.say(f"{number} ", number) for number in range(words)), writer.finish()]
    for entry in entries:
        assert await journal.append(db, [entry])
        if pubsub is not None:
            await pubsub.publish([entry.chunk])


async def logged(db: Database, row: ResponseRow, after: int = -1) -> bytes:
    return b"".join(chunk.frames for chunk in (await journal.read(db, row.id, after)).chunks)


async def test_a_publish_that_is_cut_off_leaves_no_reply_behind_for_the_next_command(pubsub: PubSub) -> None:
    chunks = [Chunk(f"resp_{number}", 0, 0, 1, (), b"x" * 1000) for number in range(50)]
    for turns in range(8):
        cut = asyncio.create_task(pubsub.publish(chunks))
        for _ in range(turns):
            await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([cut])
        assert await pubsub._client.echo("mine") == b"mine"


async def test_readers_from_any_number_get_the_same_bytes_while_it_is_written(db: Database, pubsub: PubSub) -> None:
    row = await claimed(db)
    writer = Writer(row)

    async def reader(after: int) -> bytes:
        async with pubsub.subscribe(row.id) as subscription:
            return await collect(db, subscription, row, after, poll=NEVER)

    readers = [asyncio.create_task(reader(after)) for after in (-1, -1, 0, 3, 7, 15)]
    await say(db, pubsub, writer, 20)
    got = await asyncio.gather(*readers)
    for after, text in zip((-1, -1, 0, 3, 7, 15), got, strict=True):
        assert text == await logged(db, row, after)


async def test_a_reader_that_hears_nothing_finds_everything_in_postgres(db: Database, deaf: PubSub) -> None:
    row = await claimed(db)
    async with deaf.subscribe(row.id) as subscription:
        reading = asyncio.create_task(collect(db, subscription, row, poll=0.02))
        await say(db, None, Writer(row), 5)
        assert await reading == await logged(db, row)


async def test_a_gap_in_what_was_heard_is_filled_from_postgres(db: Database, pubsub: PubSub) -> None:
    row = await claimed(db)
    writer = Writer(row)
    async with pubsub.subscribe(row.id) as subscription:
        reading = asyncio.create_task(collect(db, subscription, row, poll=NEVER))
        entries = writer.begin(), writer.say("heard", 1), writer.say("missed", 2), writer.finish()
        for entry in entries:
            await journal.append(db, [entry])
            if entry is not entries[2]:
                await pubsub.publish([entry.chunk])
        assert await reading == await logged(db, row)


async def test_what_is_published_twice_is_read_once(db: Database, pubsub: PubSub) -> None:
    row = await claimed(db)
    writer = Writer(row)
    async with pubsub.subscribe(row.id) as subscription:
        reading = asyncio.create_task(collect(db, subscription, row, poll=NEVER))
        for entry in (writer.begin(), writer.say("a", 1), writer.finish()):
            await journal.append(db, [entry])
            await pubsub.publish([entry.chunk, entry.chunk])
        assert await reading == await logged(db, row)


OPENING = Chunk("resp_1", 0, 1, 0, (), b"opening")
END = Chunk("resp_1", 2, 2, 1, (), b"end", final=True)


async def test_who_listened_before_the_first_commit_has_nothing_to_look_for(pubsub: PubSub) -> None:
    async def read(_: int) -> LogSlice:
        raise AssertionError("it looked")

    async with pubsub.subscribe("resp_1") as subscription:
        await until(subscription._confirmed.is_set)
        chunks = subscription.follow(read, opening=OPENING, poll=NEVER)
        assert await anext(chunks) is OPENING
        await pubsub.publish([END])
        assert [chunk.frames async for chunk in chunks if chunk is not None] == [b"end"]


async def test_who_did_not_listen_yet_looks_into_the_log(deaf: PubSub) -> None:
    async def read(_: int) -> LogSlice:
        return LogSlice((OPENING, END), Status.COMPLETED)

    async with deaf.subscribe("resp_1") as subscription:
        chunks = subscription.follow(read, opening=OPENING, poll=NEVER)
        assert [chunk.frames async for chunk in chunks if chunk is not None] == [b"opening", b"end"]


async def test_what_a_reader_heard_in_one_go_it_gets_in_one_go(db: Database, pubsub: PubSub) -> None:
    row = await claimed(db)
    async with pubsub.subscribe(row.id) as subscription:
        chunks = subscription.follow(partial(journal.read, db, row.id), poll=NEVER)
        read = await anext(chunks)
        assert read is not None
        for number in range(1, 6):
            subscription._hear(
                Chunk(row.id, read.last + number, read.last + number, 1, (), b"%d " % number, number == 5)
            )
        heard = await anext(chunks)
        assert heard is not None
        assert (heard.first, heard.last, heard.frames, heard.final) == (
            read.last + 1,
            read.last + 5,
            b"1 2 3 4 5 ",
            True,
        )
        assert [chunk async for chunk in chunks] == []


async def test_a_reader_too_slow_for_the_backlog_still_gets_everything(db: Database, pubsub: PubSub) -> None:
    row = await claimed(db)
    writer = Writer(row)
    async with pubsub.subscribe(row.id) as subscription:
        chunks = subscription.follow(partial(journal.read, db, row.id), poll=NEVER)
        first = await anext(chunks)
        assert first is not None
        await say(db, pubsub, writer, BACKLOG + 50)
        rest = [chunk.frames async for chunk in chunks if chunk is not None]
        assert first.frames + b"".join(rest) == await logged(db, row)


async def test_a_cancelled_response_ends_its_readers(db: Database, pubsub: PubSub) -> None:
    row = await claimed(db)
    async with pubsub.subscribe(row.id) as subscription:
        reading = asyncio.create_task(collect(db, subscription, row, poll=NEVER))
        cancellation = await responses.cancel(db, row.id, None)
        assert cancellation is not None
        assert cancellation.chunk is not None
        await pubsub.publish([cancellation.chunk])
        assert frames.decode(await reading)[-1]["type"] == "response.cancelled"


async def test_a_deleted_response_ends_readers_that_missed_the_news(db: Database, deaf: PubSub) -> None:
    row = await claimed(db)
    async with deaf.subscribe(row.id) as subscription:
        reading = asyncio.create_task(collect(db, subscription, row, poll=0.02))
        await responses.delete(db, "default", row.id)
        await asyncio.wait_for(reading, 10)


async def test_quiet_readers_are_told_when_a_keepalive_is_due(db: Database, pubsub: PubSub) -> None:
    row = await claimed(db)
    async with pubsub.subscribe(row.id) as subscription:
        chunks = subscription.follow(partial(journal.read, db, row.id), 1, poll=NEVER, idle=0.01)
        assert await anext(chunks) is None
        assert await anext(chunks) is None
        await chunks.aclose()  # type: ignore[attr-defined]


async def test_a_read_that_fails_is_tried_again(db: Database, deaf: PubSub) -> None:
    row = await claimed(db)
    await say(db, None, Writer(row), 3)
    failures = iter([PubSubUnavailable("away"), PubSubUnavailable("away")])

    async def read(after: int) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return await journal.read(db, row.id, after)

    async with deaf.subscribe(row.id) as subscription:
        chunks = [chunk.frames async for chunk in subscription.follow(read, poll=0.01) if chunk is not None]
    assert b"".join(chunks) == await logged(db, row)


async def test_a_relay_that_lost_redis_connects_again_and_its_readers_look_into_postgres(
    db: Database, pubsub: PubSub, services: Any
) -> None:
    row = await claimed(db)
    writer = Writer(row)
    async with pubsub.subscribe(row.id) as subscription:
        reading = asyncio.create_task(collect(db, subscription, row, poll=NEVER))
        entry = writer.begin()
        await journal.append(db, [entry])
        await pubsub.publish([entry.chunk])
        client = redis.asyncio.from_url(services.redis_url)
        await client.client_kill_filter(_type="pubsub")
        await client.aclose()
        entry = writer.finish()
        await journal.append(db, [entry])  # rung for while nobody listens
        assert await reading == await logged(db, row)
        await until(lambda: pubsub.connected)


async def test_publishing_without_redis_says_so(deaf: PubSub) -> None:
    with pytest.raises(PubSubUnavailable):
        await deaf.publish([Chunk("resp_1", 0, 0, 1, (), b"")])
    with pytest.raises(PubSubUnavailable):
        await deaf.ping()
    assert not deaf.connected


async def test_subscriptions_leave_nothing_behind(db: Database, pubsub: PubSub) -> None:
    for _ in range(3):
        async with pubsub.subscribe("resp_1"), pubsub.subscribe("resp_1"):
            assert len(pubsub._readers) == 1
    assert not pubsub._readers
    assert not pubsub._confirmed


async def test_readers_who_come_and_go_together_are_one_command_each(
    pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []
    subscribe, unsubscribe = RedisPubSub.subscribe, RedisPubSub.unsubscribe

    async def counted(pubsub: RedisPubSub, *channels: str) -> None:
        told.append(("subscribe", len(channels)))
        await subscribe(pubsub, *channels)

    async def counted_too(pubsub: RedisPubSub, *channels: str) -> None:
        told.append(("unsubscribe", len(channels)))
        await unsubscribe(pubsub, *channels)

    monkeypatch.setattr(RedisPubSub, "subscribe", counted)
    monkeypatch.setattr(RedisPubSub, "unsubscribe", counted_too)
    async with AsyncExitStack() as stack:
        coming = (stack.enter_async_context(pubsub.subscribe(f"resp_{number}")) for number in range(50))
        readers = [await each for each in coming]
        for reader in readers:
            await reader._listen()
            assert reader._confirmed.is_set()
    await until(lambda: len(told) == 2)
    assert told == [("subscribe", 50), ("unsubscribe", 50)]


async def test_a_reader_who_comes_right_after_another_left_hears(pubsub: PubSub) -> None:
    chunk = Chunk("resp_1", 0, 0, 1, (), b"x")
    for _ in range(20):
        async with pubsub.subscribe("resp_1"):
            pass
        async with pubsub.subscribe("resp_1") as reader:
            await until(lambda: _heard(pubsub, reader, chunk))


async def _heard(pubsub: PubSub, reader: Subscription, chunk: Chunk) -> bool:
    await pubsub.publish([chunk])
    return bool(reader._heard)
