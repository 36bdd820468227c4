"""Publishing and subscribing on a real Redis, and without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.protocol.events.chunk import Chunk
from app.queue import redis_client
from app.store.database import StoreUnavailable
from app.streaming import pubsub as module
from app.streaming.message import MAX_FRAMES_BYTES
from app.streaming.pubsub import CHANNEL, PubSub, PubSubUnavailable
from app.streaming.subscription import Subscription
from tests.faults.proxy import HOST, Connect, Mode, Proxy
from tests.support.rows import a_key
from tests.support.waiting import until


async def test_a_publish_that_is_cut_off_leaves_no_reply_behind_for_the_next_command(pubsub: PubSub) -> None:
    chunks = [Chunk(f"resp_{number}", 0, 0, 1, (), b"x" * 1000) for number in range(50)]
    for turns in range(8):
        cut = asyncio.create_task(pubsub.publish(chunks))
        for _ in range(turns):
            await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([cut])
        assert await pubsub._client.echo("mine") == b"mine"


async def test_publishing_without_redis_is_logged_once(unreachable: PubSub, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        await unreachable.publish([Chunk("resp_1", 0, 0, 1, (), b"")])
    assert caplog.text.count("events are not published (ConnectionError); readers poll Postgres") == 1


async def test_a_ping_without_redis_raises(unreachable: PubSub) -> None:
    with pytest.raises(PubSubUnavailable):
        await unreachable.ping()
    assert not unreachable.connected


@asynccontextmanager
async def proxied_pubsub(redis_url: str, connect: Connect | None = None) -> AsyncIterator[tuple[PubSub, Proxy]]:
    """A PubSub that has started, and its proxy. `connect` opens the proxy's connections; by default to this Redis."""
    parts = urlsplit(redis_url)
    proxy = Proxy(connect or partial(asyncio.open_connection, HOST, parts.port))
    await proxy.start()
    pubsub = PubSub(f"redis://:{parts.password}@{HOST}:{proxy.port}/0", a_key)
    try:
        await pubsub.start()
        yield pubsub, proxy
    finally:
        await pubsub.close()
        await proxy.close()


async def test_a_redis_that_falls_silent_is_noticed_and_left(services: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a failover: nobody closes the connection on which this process receives."""
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.5)
    async with proxied_pubsub(services.redis_url) as (pubsub, proxy), pubsub.subscribe("resp_1") as reader:
        await reader.wait_until_confirmed()
        received = pubsub._received
        await until(lambda: pubsub._received > received, what="the answer to a ping")
        assert pubsub.connected and reader.is_complete
        proxy.set(Mode.STALL)
        await until(lambda: not pubsub.connected, what="the silence is noticed")
        proxy.set(Mode.OPEN)
        await until(lambda: pubsub.connected, what="it has connected again")
        assert not reader.is_complete, "it must look into the log"


async def test_a_greeting_without_an_answer_is_given_up_and_tried_again(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that comes up in the middle of a failover may be one that nobody answers."""
    monkeypatch.setattr(redis_client, "REPLY_SECONDS", 0.2)
    port, greeted = urlsplit(services.redis_url).port, 0

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        nonlocal greeted
        reader, writer = await asyncio.open_connection(HOST, port)
        greeted += 1
        return (asyncio.StreamReader() if greeted == 1 else reader), writer

    async with proxied_pubsub(services.redis_url, connect) as (pubsub, _):
        await until(lambda: pubsub.connected)
    assert greeted > 1


async def test_a_reader_that_comes_right_after_another_left_receives_chunks(pubsub: PubSub) -> None:
    chunk = Chunk("resp_1", 0, 0, 1, (), b"x")
    for _ in range(20):
        async with pubsub.subscribe("resp_1"):
            pass
        async with pubsub.subscribe("resp_1") as reader:
            await until(lambda: _received(pubsub, reader, chunk))


async def _received(pubsub: PubSub, reader: Subscription, chunk: Chunk) -> bool:
    await pubsub.publish([chunk])
    return reader.has_received


async def test_forged_messages_are_counted_and_no_reader_notices(pubsub: PubSub) -> None:
    chunk = Chunk("resp_1", 0, 0, 1, (), b"x")
    async with pubsub.subscribe("resp_1") as reader:
        await until(lambda: reader.is_complete)
        for forged in (b"", b"\0", b"\0" * 29 + b"event: forged", b"\xff" * 100):
            for channel in (CHANNEL, CHANNEL + "resp_1"):
                await pubsub._client.publish(channel, forged)
        await pubsub.publish([chunk])
        await until(lambda: reader.has_received)
        assert reader.take(-1) == [chunk]
        assert reader.is_complete
    assert (pubsub.forged_count, pubsub.connected) == (4, True)


async def test_a_large_chunk_is_news_of_the_log(pubsub: PubSub) -> None:
    async with pubsub.subscribe("resp_1") as reader:
        await until(lambda: reader.is_complete)
        await pubsub.publish([Chunk("resp_1", 0, 0, 1, (), b"x" * (MAX_FRAMES_BYTES + 1))])
        await until(lambda: not reader.is_complete)
        assert not reader.has_received


async def test_without_the_key_a_message_sends_its_readers_to_the_log(services: Any) -> None:
    chunk, keys = Chunk("resp_1", 0, 0, 1, (), b"x"), [StoreUnavailable("away")]

    async def get_key() -> bytes:
        if keys:
            raise keys.pop()
        return await a_key()

    receiver, sender = PubSub(services.redis_url, get_key), PubSub(services.redis_url, a_key)
    await receiver.start()
    try:
        async with receiver.subscribe("resp_1") as reader:
            await until(lambda: reader.is_complete or not keys)
            receiver._next_key_at = 1e12
            await sender.publish([chunk])
            await until(lambda: not reader.is_complete)
            receiver._next_key_at = 0
            reader.clear_missed()
            await sender.publish([chunk])
            await until(lambda: reader.has_received)
    finally:
        await receiver.close()
        await sender.close()


async def test_subscriptions_leave_nothing_behind(pubsub: PubSub) -> None:
    for _ in range(3):
        async with pubsub.subscribe("resp_1"), pubsub.subscribe("resp_1"):
            assert len(pubsub._channels) == 1
    assert not pubsub._channels
    await until(lambda: not pubsub._unconfirmed)
