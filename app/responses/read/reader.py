"""Reading responses: the object, its events, its input."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import orjson

from app.batching import Batcher
from app.bounds import Bound
from app.heavy import off_loop
from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk, LogSlice, repeated, size_of
from app.protocol.events.fold import fold
from app.protocol.hosted_kinds import HOSTED_INCLUDES
from app.protocol.limits import Allowance
from app.protocol.status import Status
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.paging import Encoded, page_of
from app.sizes import is_large
from app.store.database import Database, StoreUnavailable
from app.store.paging import Page
from app.store.responses import logs, lookup
from app.store.responses.lookup import Hold
from app.store.rows import LargeRow, ResponseFlags, ResponseRow
from app.streaming.follow import READER_BYTES, HasNews, LogFollower
from app.streaming.pubsub import PubSub
from app.streaming.subscription import Subscription
from config.settings import Settings

T = TypeVar("T")

QueryIncludes = Sequence[tuple[str, str]]
"""Values of `include` in a query, each after the name of its parameter."""

Pulse = Chunk | None
"""What a reader of events gets: a chunk, or a keep-alive when no event came for a while: `repeated`, or None."""

POLL_SECONDS = 2.0
"""Without news from Redis for so long, a reader looks into Postgres; up to three times as long if it stays quiet."""
WRITES_PER_SECOND = 10_000
"""Writes to all readers of one project. Each takes 17 us: 500 readers of 200 events a second took more
than a core, and another project's request waited for seconds."""
SHORTEST_REST = 0.01
"""Shortest pause of a reader. Each of fewer than 100 readers gets its events at once."""
MAX_LOOKS = 1024
"""Readers without news that look into Postgres together: each of 2,000 by itself kept all other requests waiting."""


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a response that no client is attached to, which nothing is held for until they are read."""

    pulses: AsyncGenerator[Pulse, None]
    allowance: Allowance | None = None
    """What the limits of the project leave, if the response has just been created and there are limits."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A response object, encoded where it was read: beside the event loop if it is large."""

    body: Encoded
    final: bool


def shown(row: ResponseRow, log: LogSlice | None = None) -> Shown:
    """Returns the response; while it is in progress, `log` has its output so far."""
    body = row.as_object(None if log is None else _fold_output(log))
    return Shown(orjson.dumps(body), row.status.final)


def no_such_response(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{shortened(response_id)}' not found.", code="response_not_found")


class ResponseReader:
    """Reads responses and follows their events. Raises StoreUnavailable while Postgres cannot be reached."""

    def __init__(self, db: Database, pubsub: PubSub, settings: Settings) -> None:
        self._db = db
        self._pubsub = pubsub
        self._settings = settings
        self.readers = Bound("readers", settings.max_connections, shares=settings.asks_for_keys)
        """Whoever reads events holds one, from before the first look into Postgres to the end."""
        self._pages = Bound(
            "pages", settings.buffer_bytes, READER_BYTES, unit="bytes of ", shares=settings.asks_for_keys
        )
        self._news: Batcher[tuple[str, int], bool] = Batcher(
            partial(logs.have_news, db), max_items=MAX_LOOKS, shared_errors=(StoreUnavailable,)
        )

        self._ended: Batcher[str, ResponseRow | LargeRow | None] = Batcher(
            partial(lookup.find_ended, db), max_items=MAX_LOOKS, shared_errors=(StoreUnavailable,)
        )

    @property
    def bounds(self) -> Sequence[Bound]:
        """For metrics."""
        return self.readers, self._pages

    async def close(self) -> None:
        """Ends what readers still ask."""
        await self._news.close()
        await self._ended.close()

    async def flags(self, project: str, response_id: str) -> ResponseFlags:
        """Raises NotFound, also for a foreground response that is not stored: only its own client gets it."""
        flags = await lookup.get_flags(self._db, project, response_id)
        if flags is None or not (flags.store or flags.background):
            raise no_such_response(response_id)
        return flags

    async def get(self, project: str, response_id: str, included: QueryIncludes, hold: Hold) -> Shown:
        """Returns the response, with the output so far while it is in progress; a large one once `hold` has room.

        Raises NotFound, and InvalidRequest if the response lacks something `included`.
        """

        large = 0

        async def held(size: int) -> None:
            nonlocal large
            large = size
            await hold(size)

        def made(row: ResponseRow) -> Shown | ResponseRow:
            _check_included(row.request["include"], included)
            return row if row.status is Status.IN_PROGRESS else shown(row)

        found = await self._show(project, response_id, made, held)
        if isinstance(found, Shown):
            return found
        log = await logs.read_page(self._db, response_id)
        if not log.ended and not log.has_more and not is_large(size_of(log.chunks)):
            return await off_loop(partial(shown, found, log), large)
        if not log.ended:
            await hold(large + await logs.read_size(self._db, response_id))
            async with self._db.large_read(project) as threads:
                log = await logs.read(self._db, response_id)
                if not log.ended:
                    return await threads.run(partial(shown, found, log))
        # It ended after the first query; the row has its output now.
        return await self._show(project, response_id, shown, hold)

    async def until_ended(
        self, project: str, response_id: str, included: QueryIncludes, seconds: float
    ) -> Shown | None:
        """Returns the response once it has ended. None: it is large or gone, or has not ended after `seconds`.

        Those that end together are read together. Raises as `get` does.
        """
        flags = await self.flags(project, response_id)
        _check_included(flags.include or (), included)
        ended = await self._pubsub.until_ended(response_id, partial(self._ended.submit, response_id), seconds)
        return shown(ended) if isinstance(ended, ResponseRow) else None

    async def _show(self, project: str, response_id: str, make: Callable[[ResponseRow], T], hold: Hold) -> T:
        """Returns what `make` makes of the response. Raises NotFound as `flags` does."""

        def checked(row: ResponseRow) -> T:
            if not (row.store or row.background):
                raise no_such_response(response_id)
            return make(row)

        found = await lookup.show(self._db, project, response_id, checked, hold)
        if found is None:
            raise no_such_response(response_id)
        return found

    async def input_items(self, project: str, response_id: str, page: Page, hold: Hold) -> Encoded:
        """Returns a page of the response's own input, without what it continues; a large one once `hold` has room.

        Raises NotFound, InvalidRequest.
        """
        return await self._show(project, response_id, lambda row: page_of(row.request["input"], page), hold)

    async def replay(self, project: str, response_id: str, after: int, included: QueryIncludes = ()) -> Events:
        """Returns the events after sequence number `after`, up to the end of the response.

        The caller holds a reader's place. Raises NotFound, and InvalidRequest if the response has no events to replay
        or lacks something `included`.
        """
        flags = await self.flags(project, response_id)
        _check_included(flags.include or (), included)
        if not flags.stream:
            message = "Only a response that was created with 'stream' true can be streamed again."
            raise InvalidRequest(message, "stream", "response_not_streamable")
        self.check_log(flags)
        return Events(self.events(project, response_id, flags.as_brief_object(), after))

    def check_log(self, flags: ResponseFlags) -> None:
        """Raises InvalidRequest if retention deleted the events, or may delete them at any moment."""
        retention = timedelta(seconds=self._settings.event_retention_seconds)
        if flags.log == "deleted" or (flags.finished_at is not None and flags.finished_at + retention < flags.read_at):
            raise InvalidRequest("The events of this response are no longer kept.", "stream", "events_expired")

    async def events(
        self, project: str, response_id: str, response: Json, after: int = -1
    ) -> AsyncGenerator[Pulse, None]:
        """`replay` of a response that is known to have events, and is shown as `response` while it is silent."""
        async with (
            self._pubsub.subscribe(response_id) as subscription,
            aclosing(self.follow(project, response_id, subscription, response, after)) as pulses,
        ):
            async for pulse in pulses:
                yield pulse
                del pulse  # The next one may come in an hour.

    def follow(
        self,
        project: str,
        response_id: str,
        subscription: Subscription,
        response: Json,
        after: int = -1,
        opening: Chunk | None = None,
    ) -> AsyncGenerator[Pulse, None]:
        """`events` by a subscription of the caller's, which may have just committed the first chunk, `opening`."""
        settings = self._settings
        follower = LogFollower(
            partial(logs.read_page, self._db, response_id),
            subscription,
            after,
            poll=POLL_SECONDS,
            idle=settings.keepalive_seconds,
            holding=self._pages.take(project, 0),
            has_news=self._has_news(response_id),
            keepalive=partial(repeated, response_id, response),
            rest=partial(self._rest, project),
        )
        return follower.follow(opening)

    def _rest(self, project: str) -> float:
        """Returns for how long a reader gathers events: the readers of one project share its writes."""
        seconds = self.readers.held_by(project) / WRITES_PER_SECOND
        return seconds if seconds >= SHORTEST_REST else 0.0

    def _has_news(self, response_id: str) -> HasNews:
        async def ask(after: int) -> bool:
            return await self._news.submit((response_id, after))

        return ask


def _check_included(stored: Sequence[str], included: QueryIncludes) -> None:
    """Outputs of hosted tools are stored only if the request that created the response included them."""
    for name, value in included:
        if value in HOSTED_INCLUDES and value not in stored:
            message = f"'{name}': '{value}' was not included when the response was created."
            raise InvalidRequest(message, name, "invalid_value")


def _fold_output(log: LogSlice) -> list[Json]:
    """Returns the output items that the events of a log make."""
    output: list[Json] = fold(frames.decode(b"".join(chunk.frames for chunk in log.chunks))).response["output"]
    return output
