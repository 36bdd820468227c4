"""Reading a response's log as it grows: received chunks at once, and everything else from Postgres."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from app.bounds import Bound, BoundReached, Holding
from app.protocol.events.chunk import Chunk, LogSlice, join, size_of
from app.store.database import StoreUnavailable
from app.streaming.subscription import Subscription

POLL_GROWTH = 1.5
MAX_POLL_GROWTH = 3.0
"""The pause before the next look grows by the first factor after each look, up to the second one."""

READER_BYTES = 1024 * 1024
"""Bytes that one reader holds at most without being counted: two pages, and its messages from pub/sub."""

ReadLog = Callable[[int], Awaitable[LogSlice]]
"""Reads a page of the log after an event number: `app.store.responses.logs.read_page` of one response."""


HasNews = Callable[[int], Awaitable[bool]]
"""Whether the log has more than the events up to a number, or the response has ended; cheaper than to read it."""


class LogFollower:
    """One reader of one response. Chunks come in order, each once.

    It looks into the log at first, after a gap in the received chunks, and `poll` seconds after the last chunk if it
    `has_news` then: thousands of quiet readers share that question. A look that fails because Postgres is away is
    repeated. `idle`: quiet seconds until a keepalive is due; `keepalive` makes it from the last event's number. It
    holds one page of the log until its caller asks for the next. A page that is larger than usual counts in `holding`,
    and is read later if there is no room. `rest`: for how many seconds what is received is gathered after a write.
    """

    def __init__(
        self,
        read_log: ReadLog,
        subscription: Subscription,
        after: int = -1,
        *,
        poll: float = 2.0,
        idle: float = 15.0,
        holding: Holding | None = None,
        has_news: HasNews | None = None,
        keepalive: Callable[[int], Chunk | None] = lambda _: None,
        rest: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._read_log = read_log
        self._has_news = has_news
        self._keepalive = keepalive
        self._rest = rest
        self._subscription = subscription
        self._position = after
        self._poll = self._pause = poll
        self._idle = idle
        self._now = asyncio.get_running_loop().time
        self._quiet_since = self._now()
        self._next_look = self._quiet_since + poll
        self._must_read = True
        self._ended = False
        self._holding = holding or Bound("pages", sys.maxsize).take(None, 0)
        self._left_over = 0
        """Bytes that the last look found and could not hold: until there is room, they are not read again."""

    async def follow(self, opening: Chunk | None = None) -> AsyncGenerator[Chunk | None, None]:
        """Yields the chunks after number `after` until the response is final and its log is read to the end.

        Yields a keepalive, or None, whenever one is due. If the caller has just committed `opening`, the first chunk of
        all, and Redis had confirmed the subscription by then, the log is not read at first.
        """
        try:
            # The subscription must stand before the log is read. Otherwise chunks between the two would be missed.
            if opening is not None and self._subscription.is_complete:
                self._must_read = False
                yield opening
                self._advance(opening)
                opening = None  # It has the whole request in it, and this generator may live for hours.
            else:
                await self._subscription.wait_until_confirmed()
            while not self._ended:
                if self._must_read:
                    for chunk in await self._look():
                        yield chunk
                        self._advance(chunk)
                        del chunk  # Until the next one comes, nothing of this one stays in memory.
                elif (received := self._next_received()) is not None:
                    yield received
                    self._advance(received)
                    del received
                    if not self._ended and (seconds := self._rest()):
                        await asyncio.sleep(seconds)
                elif not self._must_read:
                    self._holding.release()  # The caller asks for more, so it has sent everything.
                    if self._is_keepalive_due():
                        yield self._keepalive(self._position)
                    await self._wait()
        finally:
            self._holding.release()

    def _advance(self, chunk: Chunk) -> None:
        self._position = chunk.last
        self._quiet_since = self._now()
        self._next_look = self._quiet_since + self._pause

    async def _look(self) -> Sequence[Chunk]:
        """Reads what the log has after the position; nothing while Postgres is away."""
        self._must_read = False
        self._subscription.clear_missed()
        try:
            self._holding.resize(self._left_over)
            found = await self._read_log(self._position)
            self._left_over = size_of(found.chunks)
            self._holding.resize(self._left_over)
            self._left_over = 0
        except StoreUnavailable:
            return ()
        except BoundReached:
            # Readers that keep something while they wait for room could wait for each other for ever.
            self._holding.release()
            return ()
        finally:
            self._next_look = self._now() + self._pause
        self._ended, self._must_read = found.ended, found.has_more
        return found.chunks

    def _next_received(self) -> Chunk | None:
        """Returns what was received, joined to one chunk. None: nothing, or a gap, which sets `_must_read`."""
        received = self._subscription.take(self._position)
        if received is None:
            self._must_read = True
        if not received:
            return None
        chunk = join(received)
        self._ended = chunk.final
        self._pause = self._poll
        return chunk

    def _is_keepalive_due(self) -> bool:
        now = self._now()
        if now - self._quiet_since < self._idle:
            return False
        self._quiet_since = now
        return True

    async def _wait(self) -> None:
        """Waits until the next chunk, look or keepalive. A reader that receives nothing looks less and less often."""
        until = min(self._next_look, self._quiet_since + self._idle)
        await self._subscription.wait(max(0.0, until - self._now()))
        if not self._subscription.has_received and self._now() >= self._next_look:
            self._must_read = await self._should_look()
            self._next_look = self._now() + self._pause
            self._pause = min(self._pause * POLL_GROWTH, self._poll * MAX_POLL_GROWTH)

    async def _should_look(self) -> bool:
        """Whether a quiet reader has to read the log; not while Postgres is away."""
        if self._has_news is None:
            return True
        try:
            return await self._has_news(self._position)
        except StoreUnavailable:
            return False
