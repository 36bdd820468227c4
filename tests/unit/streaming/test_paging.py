"""How much a reader holds: pages of the log, what pub/sub has for it, and the bound of all readers."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator

from app.bounds import Bound
from app.protocol.events.chunk import Chunk, LogSlice, join
from app.protocol.status import Status
from app.streaming.follow import LogFollower
from app.streaming.subscription import BACKLOG_BYTES, Subscription
from tests.support.waiting import PATIENCE_SECONDS

NEVER = 1e6


def chunk(number: int, size: int = 1, final: bool = False) -> Chunk:
    return Chunk("resp_1", number, number, 1, (), b"a" * size, final)


def subscription() -> Subscription:
    return Subscription(asyncio.Event(), lambda: False)


class Watched(Chunk):
    """A chunk whose end can be seen."""

    __slots__ = ("__weakref__",)


class Log:
    """A finished log of three chunks, each a page."""

    def __init__(self, size: int) -> None:
        self.reads: list[int] = []
        self._size = size

    async def read(self, after: int) -> LogSlice:
        self.reads.append(after)
        number = after + 1
        return LogSlice((chunk(number, self._size, number == 2),), Status.COMPLETED, has_more=number < 2)


async def test_the_next_page_is_read_once_this_one_was_taken() -> None:
    log = Log(1)
    pulses = LogFollower(log.read, subscription(), poll=NEVER, idle=NEVER).follow()
    for number in range(3):
        found = await anext(pulses)
        assert found is not None
        assert (found.first, log.reads) == (number, list(range(-1, number)))
    assert [pulse async for pulse in pulses] == []


async def test_keepalives_never_put_off_the_next_look_into_the_log() -> None:
    """A message that was published and lost is found there, however short the keep-alive is."""
    log = [LogSlice((), Status.IN_PROGRESS), LogSlice((chunk(0, final=True),), Status.COMPLETED)]

    async def read(_: int) -> LogSlice:
        return log.pop(0)

    pulses = LogFollower(read, subscription(), poll=0.5, idle=0.001).follow()
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = [pulse async for pulse in pulses]
    assert found[-1] == chunk(0, final=True)
    assert None in found


async def test_a_reader_waits_while_others_hold_the_total_and_loses_nothing() -> None:
    bound, log = Bound("pages", 90, free=10), Log(60)
    stuck = LogFollower(log.read, subscription(), poll=NEVER, idle=NEVER, holding=bound.take(None, 0)).follow()
    assert await anext(stuck) is not None
    waiting = LogFollower(log.read, subscription(), poll=0.001, idle=0.001, holding=bound.take(None, 0)).follow()
    for _ in range(5):
        assert await anext(waiting) is None
    assert log.reads == [-1, -1], "it is not read again until there is room"
    await stuck.aclose()
    found = [each async for each in waiting if each is not None]
    assert found[0] == chunk(0, 60)
    assert [each.first for each in found] == [0, 1, 2]
    assert bound.held == 0


async def test_readers_that_have_sent_much_and_need_much_do_not_wait_for_each_other() -> None:
    bound, log = Bound("pages", 90, free=10), Log(50)
    readers = [
        LogFollower(log.read, subscription(), poll=0.01, idle=NEVER, holding=bound.take(None, 0)).follow()
        for _ in range(2)
    ]
    for reader in readers:
        assert await anext(reader) == chunk(0, 50)

    async def rest(reader: AsyncGenerator[Chunk | None]) -> list[int]:
        return [found.first async for found in reader if found is not None]

    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await asyncio.gather(*map(rest, readers)) == [[1, 2], [1, 2]]
    assert bound.held == 0


async def test_a_chunk_that_was_taken_is_not_kept_until_the_next_one_comes() -> None:
    kept: list[weakref.ref[Watched]] = []

    async def read(after: int) -> LogSlice:
        assert [each() for each in kept] == [None] * len(kept)
        made = Watched("resp_1", after + 1, after + 1, 1, (), b"a")
        kept.append(weakref.ref(made))
        return LogSlice((made,), Status.IN_PROGRESS, has_more=len(kept) < 3)

    pulses = LogFollower(read, subscription(), poll=NEVER, idle=0.01).follow()
    for _ in range(3):
        assert await anext(pulses) is not None
    assert await anext(pulses) is None
    assert kept[-1]() is None
    await pulses.aclose()


async def test_what_pubsub_holds_for_a_reader_is_bounded_by_bytes() -> None:
    received = subscription()
    received.receive(chunk(0, BACKLOG_BYTES - 1))
    received.receive(chunk(1, 1))
    assert received.take(-1) == [chunk(0, BACKLOG_BYTES - 1), chunk(1, 1)]
    received.receive(chunk(2, BACKLOG_BYTES))
    received.receive(chunk(3, 1))
    assert not received.has_received
    assert received.take(1) is None
    received.clear_missed()
    received.receive(chunk(4, BACKLOG_BYTES))
    assert received.take(3) == [chunk(4, BACKLOG_BYTES)]


async def test_a_reader_that_waits_for_more_holds_nothing_of_what_it_has_read() -> None:
    async def read(after: int) -> LogSlice:
        return LogSlice((chunk(0, 60),) if after < 0 else (), Status.IN_PROGRESS)

    bound = Bound("pages", 90, free=10)
    pulses = LogFollower(read, subscription(), poll=NEVER, idle=0.01, holding=bound.take(None, 0)).follow()
    assert (await anext(pulses)) is not None
    assert bound.held == 50
    assert (await anext(pulses)) is None
    assert bound.held == 0
    await pulses.aclose()


async def test_a_reader_that_rests_gets_what_came_meanwhile_at_once() -> None:
    async def nothing(_: int) -> LogSlice:
        return LogSlice((), Status.IN_PROGRESS)

    rests = iter([0.2, 0.0])
    source = subscription()
    pulses = LogFollower(nothing, source, poll=NEVER, idle=NEVER, rest=lambda: next(rests)).follow()
    first = asyncio.ensure_future(anext(pulses))
    source.receive(chunk(0))
    assert await first == chunk(0)
    second = asyncio.ensure_future(anext(pulses))
    for number in range(1, 5):
        source.receive(chunk(number))
        for _ in range(9):
            await asyncio.sleep(0)
    assert await second == join([chunk(number) for number in range(1, 5)])
    await pulses.aclose()
