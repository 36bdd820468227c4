"""Reading responses: the object, its events, its input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import partial

from app.budget import Budget
from app.protocol.errors import InvalidRequest, NotFound, Unavailable
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk, LogSlice, size_of
from app.protocol.events.fold import fold
from app.protocol.hosted_kinds import HOSTED_INCLUDES
from app.protocol.status import Status
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.ids import may_exist
from app.responses.paging import page_of
from app.sizes import is_large
from app.store.database import Database
from app.store.paging import Page
from app.store.responses import logs, lookup
from app.store.rows import ResponseRow
from app.streaming.follow import READER_BYTES, LogFollower
from app.streaming.pubsub import PubSub
from app.streaming.subscription import Subscription
from config.settings import Settings

QueryIncludes = Sequence[tuple[str, str]]
"""Values of `include` in a query, each after the name of its parameter."""

Pulse = Chunk | None
"""What a reader of events gets: a chunk, or None when no event came for a while."""

POLL_SECONDS = 2.0
"""Without news from Redis for so long, a reader looks into Postgres; up to three times as long if it stays quiet."""
MAX_LARGE_FOLDS = 2
"""Large logs that one process folds at once, in threads; the others wait."""


def no_such_response(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{shortened(response_id)}' not found.", code="response_not_found")


class ResponseReader:
    """Reads responses and follows their events. Raises StoreUnavailable while Postgres cannot be reached."""

    def __init__(self, db: Database, pubsub: PubSub, settings: Settings) -> None:
        self._db = db
        self._pubsub = pubsub
        self._settings = settings
        self._pages = Budget(settings.buffer_bytes, READER_BYTES)
        self._large_folds = asyncio.Semaphore(MAX_LARGE_FOLDS)

    def check_room(self) -> None:
        """Raises Unavailable if this process has as many readers of events as it may."""
        if self._pubsub.reader_count >= self._settings.max_readers:
            message = f"The server has {self._settings.max_readers} readers of events, its limit; try again later."
            raise Unavailable(message, code="too_many_readers")

    async def row(self, project: str, response_id: str) -> ResponseRow:
        """Raises NotFound, also for a foreground response that is not stored: only its own client gets it."""
        row = await self.find(project, response_id)
        if row is None or not (row.store or row.background):
            raise no_such_response(response_id)
        return row

    async def find(self, project: str, response_id: str) -> ResponseRow | None:
        """Returns the response whether it is stored or not, or None."""
        return await lookup.get(self._db, project, response_id) if may_exist(response_id) else None

    async def get(self, project: str, response_id: str, included: QueryIncludes = ()) -> Json:
        """Returns the response object, with the output so far while the response is in progress.

        Raises NotFound, and InvalidRequest if the response lacks something `included`.
        """
        row = await self.row(project, response_id)
        _check_included(row, included)
        if row.status is not Status.IN_PROGRESS:
            return row.as_object()
        log = await logs.read_page(self._db, response_id)
        if not log.ended and not log.has_more and not is_large(size_of(log.chunks)):
            return row.as_object(_fold_output(log))
        async with self._large_folds:
            log = await logs.read(self._db, response_id)
            if not log.ended:
                return row.as_object(await asyncio.to_thread(_fold_output, log))
        # It ended after the first query; the row has its output now.
        return (await self.row(project, response_id)).as_object()

    async def input_items(self, project: str, response_id: str, page: Page) -> Json:
        """Returns a page of the response's own input, without what it continues. Raises NotFound, InvalidRequest."""
        row = await self.row(project, response_id)
        return page_of(row.request["input"], page)

    async def replay(
        self, project: str, response_id: str, after: int, included: QueryIncludes = ()
    ) -> AsyncGenerator[Pulse, None]:
        """Returns the events after sequence number `after`, up to the end of the response.

        Raises NotFound, and InvalidRequest if the response has no events to replay or lacks something `included`.
        """
        row = await self.row(project, response_id)
        _check_included(row, included)
        if not (row.background and row.stream):
            message = "Only a response that was created with 'stream' and 'background' true can be streamed again."
            raise InvalidRequest(message, "stream", "response_not_streamable")
        self.check_log(row)
        self.check_room()
        return self.events(response_id, after)

    def check_log(self, row: ResponseRow) -> None:
        """Raises InvalidRequest if retention deleted the events, or may delete them at any moment."""
        retention = timedelta(seconds=self._settings.event_retention_seconds)
        if row.log == "deleted" or (row.finished_at is not None and row.finished_at + retention < row.read_at):
            raise InvalidRequest("The events of this response are no longer kept.", "stream", "events_expired")

    async def events(self, response_id: str, after: int = -1) -> AsyncGenerator[Pulse, None]:
        """`replay` of a response that is known to have events. Waits while Postgres or Redis cannot be reached."""
        async with (
            self._pubsub.subscribe(response_id) as subscription,
            aclosing(self.follow(response_id, subscription, after)) as pulses,
        ):
            async for pulse in pulses:
                yield pulse
                del pulse  # The next one may come in an hour.

    def follow(
        self, response_id: str, subscription: Subscription, after: int = -1, opening: Chunk | None = None
    ) -> AsyncGenerator[Pulse, None]:
        """`events` by a subscription of the caller's, which may have just committed the first chunk, `opening`."""
        settings = self._settings
        follower = LogFollower(
            partial(logs.read_page, self._db, response_id),
            subscription,
            after,
            poll=POLL_SECONDS,
            idle=settings.keepalive_seconds,
            budget=self._pages,
        )
        return follower.follow(opening)


def _check_included(row: ResponseRow, included: QueryIncludes) -> None:
    """Outputs of hosted tools are stored only if the request that created the response included them."""
    for name, value in included:
        if value in HOSTED_INCLUDES and value not in row.request["include"]:
            message = f"'{name}': '{value}' was not included when the response was created."
            raise InvalidRequest(message, name, "invalid_value")


def _fold_output(log: LogSlice) -> list[Json]:
    """Returns the output items that the events of a log make."""
    output: list[Json] = fold(frames.decode(b"".join(chunk.frames for chunk in log.chunks))).response["output"]
    return output
