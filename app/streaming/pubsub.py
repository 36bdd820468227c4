"""The doorbell: committed chunks go from workers to readers by Redis pub/sub.

Postgres is the truth. A message only says "this was just committed"; a reader that misses one, or all of
them, finds the chunks in Postgres (`Subscription.follow`). One pub/sub connection serves a whole process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import redis.asyncio
from redis.asyncio.client import PubSub as RedisPubSub

from app.aio import end_tasks
from app.batching import Batcher
from app.protocol.events.chunk import Chunk, LogSlice, join
from app.queue.redis_commands import packed, send

log = logging.getLogger("longhaul.pubsub")

CHANNEL = "longhaul:events:"
CONNECT_SECONDS = 2.0
SUBSCRIBE_SECONDS = 2.0
RECONNECT_SECONDS = 0.5
BACKLOG = 512
"""Messages held for one slow reader; past that they are dropped, and it reads Postgres instead."""

_HEADER = struct.Struct(">qqi?")

Read = Callable[[int], Awaitable[LogSlice]]
"""Reads the log after a sequence number; `app.store.journal.read` with its response given."""


class PubSubUnavailable(Exception):
    """Redis cannot be reached."""


def _pack(chunk: Chunk) -> bytes:
    return _HEADER.pack(chunk.first, chunk.last, chunk.attempt, chunk.final) + chunk.frames


def _unpack(response_id: str, message: bytes) -> Chunk:
    first, last, attempt, final = _HEADER.unpack_from(message)
    return Chunk(response_id, first, last, attempt, (), message[_HEADER.size :], final)


def _publication(chunk: Chunk) -> bytes:
    return packed(b"PUBLISH", (CHANNEL + chunk.response_id).encode(), _pack(chunk))


class Wakeup:
    """Wakes one reader. An asyncio.Event under a timeout does the same at twice the price, for every chunk of everyone:
    here one alarm serves many waits, each of which only moves its time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._alarm: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until it has rung since the last wait, or so long."""
        if not self._rung:
            self._set_alarm(self.loop.time() + seconds)
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._rung = False

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    def _set_alarm(self, deadline: float) -> None:
        self._deadline = deadline
        if self._alarm is not None and self._alarm.when() > deadline:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None:
            self._alarm = self.loop.call_at(deadline, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        if self._waiter is None:
            return
        if self.loop.time() >= self._deadline:
            self.ring()
        else:  # it was for an earlier wait
            self._alarm = self.loop.call_at(self._deadline, self._on_alarm)


class Subscription:
    """One reader's ear for one response. `confirmed` is set once Redis says that it listens."""

    def __init__(self, confirmed: asyncio.Event, is_connected: Callable[[], bool]) -> None:
        self._confirmed = confirmed
        self._is_connected = is_connected
        self._heard: deque[Chunk] = deque()
        self._bell = Wakeup(asyncio.get_running_loop())
        self._missed = False

    def close(self) -> None:
        self._bell.close()

    def _hear(self, chunk: Chunk) -> None:
        if len(self._heard) < BACKLOG:
            self._heard.append(chunk)
        else:
            self._heard.clear()
            self._missed = True
        self._bell.ring()

    def _miss(self) -> None:
        """Something may have been lost: look into Postgres."""
        self._missed = True
        self._bell.ring()

    async def follow(
        self,
        read: Read,
        after: int = -1,
        *,
        poll: float = 2.0,
        idle: float = 15.0,
        unavailable: type[Exception] = PubSubUnavailable,
        opening: Chunk | None = None,
    ) -> AsyncGenerator[Chunk | None, None]:
        """The chunks after number `after`, contiguous, until the response is final and its log is drained.

        Listens before it looks into the log, so that nothing is missed between the two. Where the caller has just
        committed `opening`, the first chunk of all, and it listened by then, there is nothing to look for.

        None comes after `idle` quiet seconds. What is heard is yielded at once; gaps, and every `poll` quiet
        seconds, are looked up by `read`. Where `read` raises `unavailable`, it is tried again.
        """
        loop = self._bell.loop
        position, look, quiet_since, pause = after, True, loop.time(), poll
        if opening is not None and self._confirmed.is_set() and not self._missed:
            yield opening
            position, look = opening.last, False
        else:
            await self._listen()
        while True:
            heard = [] if look else self._take(position)
            if look or heard is None:
                self._missed, look = False, False
                try:
                    reading = await read(position)
                except unavailable:
                    reading = None
                for chunk in reading.chunks if reading else ():
                    yield chunk
                    position, quiet_since = chunk.last, loop.time()
                if reading and reading.ended:
                    return
                continue
            if heard:
                chunk = join(heard)
                yield chunk
                position, quiet_since = chunk.last, loop.time()
                if chunk.final:
                    return
            else:
                now = loop.time()
                if now - quiet_since >= idle:
                    yield None
                    quiet_since = now
                await self._bell.wait(min(pause, max(0.0, quiet_since + idle - now)))
                look = not self._heard and loop.time() - now >= pause
                pause = min(pause * 1.5, poll * 3) if look else poll

    async def _listen(self) -> None:
        """Waits for Redis' confirmation, for a moment at most."""
        if self._is_connected() and not self._confirmed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SUBSCRIBE_SECONDS):
                    await self._confirmed.wait()

    def _take(self, position: int) -> list[Chunk] | None:
        """What was heard and comes right after `position`; None where something in between is missing."""
        if self._missed:
            return None
        taken: list[Chunk] = []
        while self._heard:
            chunk = self._heard.popleft()
            if chunk.last <= position:
                continue
            if chunk.first > position + 1:
                self._heard.appendleft(chunk)
                if taken:
                    return taken
                # Found in Postgres, all that was heard up to now comes from there too.
                self._heard.clear()
                return None
            taken.append(chunk.after(position))
            position = chunk.last
        return taken


class PubSub:
    """Publishes and hears. Lives through Redis' absence: it connects again by itself.

    Whatever a command raises means that Redis is away. A connection that breaks at the wrong moment shows as more than
    RedisError: uvloop raises RuntimeError for a closed transport, and redis-py, which connects anew inside a command
    while the listener reads, RuntimeError and AttributeError.
    """

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.from_url(
            url, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=CONNECT_SECONDS, protocol=2
        )
        self._listener = redis.asyncio.from_url(
            url, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=None, health_check_interval=0, protocol=2
        )
        self._pubsub: RedisPubSub | None = None
        self._readers: dict[str, set[Subscription]] = {}
        self._confirmed: dict[str, asyncio.Event] = {}
        self._commands = Batcher(self._command)
        self._lock = asyncio.Lock()
        self._broken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.connected = False

    async def start(self) -> None:
        """Begins to listen; returns once connected or refused, and goes on trying."""
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._listen(ready), name="pubsub")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await ready.wait()

    async def close(self) -> None:
        await self._commands.close()
        if self._task is not None:
            await end_tasks(self._task)
        await self._client.aclose()
        await self._listener.aclose()

    async def ping(self) -> None:
        """Raises PubSubUnavailable where Redis does not answer."""
        try:
            await self._client.ping()
        except Exception as error:
            raise PubSubUnavailable(type(error).__name__) from error

    async def publish(self, chunks: Iterable[Chunk]) -> None:
        """Rings for chunks that are committed, in one round trip. Raises PubSubUnavailable; nothing is lost by that."""
        try:
            await send(self._client, [_publication(chunk) for chunk in chunks], CONNECT_SECONDS)
        except Exception as error:
            raise PubSubUnavailable(type(error).__name__) from error

    @contextlib.asynccontextmanager
    async def subscribe(self, response_id: str) -> AsyncIterator[Subscription]:
        """A reader's ear, about to listen; without Redis the reader lives by Postgres."""
        channel = CHANNEL + response_id
        readers = self._readers.setdefault(channel, set())
        is_first, confirmed = channel not in self._confirmed, self._confirmed.setdefault(channel, asyncio.Event())
        subscription = Subscription(confirmed, lambda: self.connected)
        readers.add(subscription)
        try:
            if is_first:
                self._commands.submit((True, channel))
            yield subscription
        finally:
            readers.discard(subscription)
            subscription.close()
            if not readers and self._readers.get(channel) is readers:
                del self._readers[channel]
                self._confirmed.pop(channel, None)
                self._commands.submit((False, channel))

    async def _command(self, batch: Sequence[tuple[bool, str]]) -> Sequence[None]:
        """Begins (True) or ends to listen to each, in this order; where it fails, the listener starts anew."""
        async with self._lock:
            if self._pubsub is not None and self.connected:
                try:
                    for begins, commands in groupby(batch, itemgetter(0)):
                        channels = [channel for _, channel in commands]
                        await (self._pubsub.subscribe(*channels) if begins else self._pubsub.unsubscribe(*channels))
                except Exception:
                    self._broken.set()
        return [None] * len(batch)

    async def _listen(self, ready: asyncio.Event) -> None:
        while True:
            try:
                await self._hear(ready)
            except Exception as error:
                if self.connected:
                    log.warning("lost Redis (%s); readers look into Postgres until it is back", type(error).__name__)
            finally:
                self.connected = False
                ready.set()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _hear(self, ready: asyncio.Event) -> None:
        async with self._listener.pubsub() as pubsub:
            await pubsub.connect()
            async with self._lock:
                self._pubsub = pubsub
                self._broken.clear()
                # A subscription of our own: with none at all redis-py would refuse to listen.
                await pubsub.subscribe(CHANNEL, *self._readers)
                self.connected = True
            ready.set()
            for readers in self._readers.values():
                for reader in readers:
                    reader._miss()
            await self._until_broken(pubsub)

    async def _until_broken(self, pubsub: RedisPubSub) -> None:
        """Hears until the connection is lost, or a command on it failed; raises what told."""
        hearing = asyncio.create_task(self._dispatch_all(pubsub))
        broken = asyncio.create_task(self._broken.wait())
        try:
            await asyncio.wait([hearing, broken], return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                hearing.result()
            raise PubSubUnavailable("a command failed")
        finally:
            await end_tasks(hearing, broken)

    async def _dispatch_all(self, pubsub: RedisPubSub) -> None:
        while True:
            message = await pubsub.get_message(timeout=None)
            if message is not None:
                self._dispatch(message["type"], message["channel"].decode(), message["data"])

    def _dispatch(self, kind: str, channel: str, data: bytes) -> None:
        if kind == "message":
            chunk = _unpack(channel.removeprefix(CHANNEL), data)
            for reader in self._readers.get(channel, ()):
                reader._hear(chunk)
        elif kind == "subscribe" and (confirmed := self._confirmed.get(channel)) is not None:
            confirmed.set()
