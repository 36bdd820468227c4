"""PubSub survives connections to Redis that break at any moment.

Found by the fault suite: under uvloop, redis-py raised RuntimeError instead of RedisError. That ended the journal's
publisher for good and a stream's request with 500, and could have ended the listener.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from random import Random

import pytest
import uvloop

from app.protocol.events.chunk import Chunk
from app.streaming.pubsub import PubSub, PubSubUnavailable
from tests.faults.proxy import Mode, Proxy
from tests.support.proxied_pubsub import proxied_pubsub
from tests.support.waiting import until

RESETS = 40


def chunk(response_id: str, size: int = 1) -> Chunk:
    return Chunk(response_id, 0, 0, 1, (), b"x" * size, True)


async def publish(pubsub: PubSub, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await pubsub.publish([chunk("r", 100_000)])
        with suppress(PubSubUnavailable):
            await pubsub.ping()


async def subscribe(pubsub: PubSub, stop: asyncio.Event, number: int) -> None:
    while not stop.is_set():
        async with pubsub.subscribe(f"r{number}"):
            await asyncio.sleep(0)


async def disturb(proxy: Proxy, random: Random) -> None:
    for _ in range(RESETS):
        await asyncio.sleep(random.uniform(0, 0.04))
        proxy.set(random.choice((Mode.CUT, Mode.MUTE, Mode.STALL)))
        await asyncio.sleep(random.uniform(0, 0.02))
        proxy.reset()
        proxy.set(Mode.OPEN)


async def scenario(redis_url: str) -> None:
    stop = asyncio.Event()
    async with proxied_pubsub(redis_url) as (pubsub, proxy):
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(publish(pubsub, stop))
                group.create_task(subscribe(pubsub, stop, number))
            await disturb(proxy, Random(1))
            stop.set()
        async with pubsub.subscribe("after") as subscription:

            async def arrives() -> bool:
                """The first messages may be lost: the last reset may not have been noticed."""
                await pubsub.publish([chunk("after")])
                return subscription.has_received

            await until(arrives, 30, what="a message arrives")


# redis-py does not close the writer of a connection that breaks while it connects.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning")
def test_pubsub_survives_connections_that_break_at_any_moment(redis_url: str) -> None:
    try:
        uvloop.run(scenario(redis_url))
    finally:
        gc.collect()  # Such writers warn now; later they would fail another test.
