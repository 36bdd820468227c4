"""Publishing committed chunks to Redis, and receiving those that the readers of this process subscribed to.

Postgres is the truth. A message only says "this was just committed"; a reader that misses one, or all of them, finds
the chunks in the log (follow.py). One pub/sub connection serves a whole process. Messages are signed (message.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar, cast

from redis.asyncio.client import PubSub as RedisPubSub

from app.aio import Turns, end_tasks
from app.batching import Batcher
from app.heavy import PROJECT
from app.protocol.events.chunk import Chunk
from app.protocol.text import is_worth_a_line
from app.queue.commands import GetKey
from app.queue.redis_client import CONNECT_SECONDS, answer, make_client, run_script, try_twice
from app.streaming.message import ForgedMessage, Messages
from app.streaming.subscription import Subscription

log = logging.getLogger("longhaul.pubsub")

T = TypeVar("T")

CHANNEL = "longhaul:events:2:"
"""The number is the version of the messages. Processes of another version are not heard; readers then poll Postgres."""
_DOORBELL = "doorbell."
"""Doorbells are channels, too, whose messages hold nothing. No response's id begins like this."""
ENDINGS = "endings"
"""The doorbell that rings with every end of a response or a batch that is published, if anybody listens."""
RECONNECT_SECONDS = 0.5

SILENT_SECONDS = 5.0
"""Without a message for so long, Redis is asked whether it is still there; after as long again, it is not."""

END_POLL_SECONDS = 10.0
"""Without news for so long, whoever waits for an end alone asks Postgres. They are many, and only lost news keeps them
waiting for so long."""

KEY_SECONDS = 1.0
"""The pause between two attempts to read the key, while Postgres is away."""

MAX_PUBLISHED = 128
"""Chunks of one script: Redis sends nothing to a subscriber before its end, and cuts off one with 32 MB waiting."""
_PUBLISH = "for i, channel in ipairs(KEYS) do redis.call('PUBLISH', channel, ARGV[i]) end"
_PUBLISH_AND_RING = f"""
if redis.call('PUBSUB', 'NUMSUB', KEYS[#KEYS])[2] == 0 then KEYS[#KEYS] = nil end
{_PUBLISH}
"""


def _ring(doorbell: str) -> Chunk:
    return Chunk(_DOORBELL + doorbell, 0, 0, 0, (), b"")


class _Channel:
    """The subscriptions of this process to one channel, and whether Redis has confirmed them."""

    def __init__(self) -> None:
        self.readers: set[Subscription] = set()
        self.confirmed = asyncio.Event()


class PubSubUnavailable(Exception):
    """Redis cannot be reached."""


class PubSub:
    """Publishes and subscribes. While Redis is away it tries to reconnect.

    Every error of a command means that Redis is away, because a broken connection shows as more than RedisError:
    uvloop raises RuntimeError for a closed transport. redis-py raises RuntimeError and AttributeError if a command
    reconnects while the receiving task reads. So every command has a time limit: one that connects again would wait for
    ever for a greeting that was lost.
    """

    def __init__(self, url: str, get_key: GetKey) -> None:
        self._get_key = get_key
        self._messages: Messages | None = None
        self._next_key_at = 0.0
        self._client = make_client(url)
        self._pubsub: RedisPubSub | None = None
        self._channels: dict[str, _Channel] = {}
        self._unconfirmed: dict[str, deque[asyncio.Event]] = {}
        """What the confirmations still to come stand for, by channel: Redis answers each SUBSCRIBE, in order."""
        self._changes = Batcher(self._change_channels)
        self._turns = Turns()
        self._lock = asyncio.Lock()
        self._broken = asyncio.Event()
        self._received = 0
        self._task: asyncio.Task[None] | None = None
        self._can_publish = True
        self.connected = False
        self.forged_count = 0
        """Messages that were ignored because no process of this deployment made them."""

    async def start(self) -> None:
        """Starts to receive. Returns once Redis has accepted or refused the connection; goes on trying."""
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._run(ready), name="pubsub")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await ready.wait()

    async def close(self) -> None:
        await self._changes.close()
        if self._task is not None:
            await end_tasks(self._task)
        await self._client.aclose()

    async def ping(self) -> None:
        """Raises PubSubUnavailable if Redis does not answer."""
        try:
            await answer(cast(Awaitable[object], self._client.ping()))
        except Exception as error:
            raise PubSubUnavailable(type(error).__name__) from error

    async def publish(self, chunks: Sequence[Chunk]) -> bool:
        """Publishes committed chunks, up to MAX_PUBLISHED in a round trip; returns whether Redis has them.

        Never raises. If it cannot, that is logged, and readers poll Postgres.
        """
        try:
            messages = await self._load_messages()
            for start in range(0, len(chunks), MAX_PUBLISHED):
                await self._publish(messages, chunks[start : start + MAX_PUBLISHED])
        except Exception as error:
            if self._can_publish:
                log.warning("events are not published (%s); readers poll Postgres", type(error).__name__)
            self._can_publish = False
        else:
            self._can_publish = True
        return self._can_publish

    async def _publish(self, messages: Messages, chunks: Sequence[Chunk]) -> None:
        rings = any(chunk.final for chunk in chunks)
        published = [*chunks, _ring(ENDINGS)] if rings else chunks
        script = _PUBLISH_AND_RING if rings else _PUBLISH
        channels = [CHANNEL + chunk.response_id for chunk in published]
        packed = [messages.pack(chunk) for chunk in published]
        await try_twice(lambda: run_script(self._client, script, channels, *packed))

    async def _load_messages(self) -> Messages:
        if self._messages is None:
            self._messages = Messages(await self._get_key())
        return self._messages

    async def _try_to_load_messages(self) -> None:
        """Asks for the key if it is missing, but not often. Until it is there, messages send readers to the log."""
        now = asyncio.get_running_loop().time()
        if self._messages is None and now >= self._next_key_at:
            with contextlib.suppress(Exception):
                await self._load_messages()
            self._next_key_at = now + KEY_SECONDS

    async def ring(self, doorbell: str) -> None:
        """Wakes whoever listens to the doorbell, in every process. Never raises, as `publish`."""
        await self.publish([_ring(doorbell)])

    async def tell_ends(self, *ids: str) -> None:
        """Tells those who wait for the ends of these, and find them in Postgres. Never raises, as `publish`."""
        await self.publish([Chunk(each, 0, 0, 0, (), b"", final=True) for each in ids])

    async def until_ended(self, object_id: str, find: Callable[[], Awaitable[T | None]], seconds: float) -> T | None:
        """Returns what `find` finds once the object has ended: it is asked at each news of an end, and now and then.

        None: it has found nothing after `seconds`. Raises what `find` raises.
        """
        until = asyncio.get_running_loop().time() + seconds
        async with self.subscribe(object_id) as subscription:
            await subscription.wait_until_confirmed()
            while (found := await find()) is None:
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                await subscription.wait_for_end(min(left, END_POLL_SECONDS))
        await self._turns.take(PROJECT.get())  # thousands may wait for the same end, and each encodes an answer
        return found

    @contextlib.asynccontextmanager
    async def subscribe(self, response_id: str) -> AsyncIterator[Subscription]:
        """Subscribes one reader to one response, at once; the confirmation comes later. Works without Redis, too."""
        async with self._subscribed(CHANNEL + response_id) as subscription:
            yield subscription

    @contextlib.asynccontextmanager
    async def listen(self, doorbell: str) -> AsyncIterator[Subscription]:
        """Subscribes to a doorbell. The subscription's `wait` returns when it rings, or may have rung unheard."""
        async with self._subscribed(CHANNEL + _DOORBELL + doorbell) as subscription:
            yield subscription

    @contextlib.asynccontextmanager
    async def _subscribed(self, name: str) -> AsyncIterator[Subscription]:
        is_first = name not in self._channels
        channel = self._channels.setdefault(name, _Channel())
        subscription = Subscription(channel.confirmed, lambda: self.connected)
        channel.readers.add(subscription)
        try:
            if is_first:
                self._changes.submit((name, channel.confirmed))
            yield subscription
        finally:
            channel.readers.discard(subscription)
            if not channel.readers and self._channels.get(name) is channel:
                del self._channels[name]
                self._changes.submit((name, None))

    async def _change_channels(self, batch: Sequence[tuple[str, asyncio.Event | None]]) -> Sequence[None]:
        """Subscribes to each channel with an event to set, or unsubscribes, in this order. An error reconnects."""
        async with self._lock:
            if self._pubsub is not None and self.connected:
                try:
                    for is_leaving, changes in groupby(batch, lambda change: change[1] is None):
                        channels = [self._expect(name, confirmed) for name, confirmed in changes]
                        await answer((self._pubsub.unsubscribe if is_leaving else self._pubsub.subscribe)(*channels))
                except Exception:
                    self._broken.set()
        return [None] * len(batch)

    def _expect(self, name: str, confirmed: asyncio.Event | None) -> str:
        """Notes which event the confirmation will set; returns the channel's name."""
        if confirmed is not None:
            self._unconfirmed.setdefault(name, deque()).append(confirmed)
        return name

    async def _run(self, ready: asyncio.Event) -> None:
        while True:
            try:
                await self._connect_and_receive(ready)
            except Exception as error:
                if self.connected:
                    log.warning("lost Redis (%s); readers poll Postgres until it is back", type(error).__name__)
            finally:
                self.connected = False
                ready.set()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _connect_and_receive(self, ready: asyncio.Event) -> None:
        """Receives until the connection breaks; raises what broke it."""
        async with self._client.pubsub() as pubsub:
            await answer(pubsub.connect())
            async with self._lock:
                self._pubsub = pubsub
                self._broken.clear()
                # CHANNEL itself has no messages; without any channel redis-py would refuse to receive.
                self._unconfirmed = {}
                channels = [self._expect(name, channel.confirmed) for name, channel in self._channels.items()]
                await answer(pubsub.subscribe(CHANNEL, *channels))
                self.connected = True
            ready.set()
            for channel in self._channels.values():
                for reader in channel.readers:
                    reader.mark_missed()
            await self._receive_until_broken(pubsub)

    async def _receive_until_broken(self, pubsub: RedisPubSub) -> None:
        receiving = asyncio.create_task(self._receive_all(pubsub))
        silent = asyncio.create_task(self._ask_when_silent(pubsub))
        broken = asyncio.create_task(self._broken.wait())
        tasks = [receiving, silent, broken]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks[:2]:
                if task.done():
                    task.result()
            raise PubSubUnavailable("a command failed")
        finally:
            await end_tasks(*tasks)

    async def _ask_when_silent(self, pubsub: RedisPubSub) -> None:
        """Raises PubSubUnavailable once Redis does not even answer a ping: a failover may close no connection."""
        asked_at = -1
        while True:
            before = self._received
            await asyncio.sleep(SILENT_SECONDS)
            if self._received > before:
                continue
            if asked_at == before:
                raise PubSubUnavailable("no answer to a ping")
            asked_at = before
            await answer(pubsub.ping())

    async def _receive_all(self, pubsub: RedisPubSub) -> None:
        while True:
            message = await pubsub.get_message(timeout=None)
            self._received += 1
            if message is not None and message["type"] != "pong":
                await self._try_to_load_messages()
                self._dispatch(message["type"], message["channel"].decode(errors="replace"), message["data"])

    def _dispatch(self, kind: str, name: str, data: bytes) -> None:
        if kind == "message":
            if (channel := self._channels.get(name)) is not None:
                self._hand_out(channel.readers, name.removeprefix(CHANNEL), data)
        elif kind == "subscribe" and (unconfirmed := self._unconfirmed.get(name)):
            unconfirmed.popleft().set()
            if not unconfirmed:
                del self._unconfirmed[name]

    def _hand_out(self, readers: Iterable[Subscription], response_id: str, data: bytes) -> None:
        """Gives a message to its readers. One that is forged is counted, and changes nothing for anybody."""
        try:
            chunk = None if self._messages is None else self._messages.unpack(response_id, data)
        except ForgedMessage:
            self._count_forged(response_id)
            return
        for reader in readers:
            if chunk is None:
                reader.mark_missed()
            else:
                reader.receive(chunk)

    def _count_forged(self, response_id: str) -> None:
        self.forged_count += 1
        if is_worth_a_line(self.forged_count):
            message = "ignored %d forged messages from Redis, the last one for %s: who can write to it?"
            log.warning(message, self.forged_count, response_id)
