"""The rules of `/v1/responses`. No HTTP here: routes turn requests into calls, and refusals into statuses.

Every response takes the same way: insert as `queued` with its opening events, commit, send its message. A
message that cannot be sent is no error: maintenance sends it again. What is left to do when a request ends early
(the message, the cancellation of a foreground response) is an errand of its own and survives the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

from app.aio import BackgroundTasks
from app.batching import Batcher
from app.protocol.errors import InvalidRequest, NotFound, Unavailable
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.fold import fold
from app.protocol.hosted_kinds import HOSTED_INCLUDES
from app.protocol.requests.request import ResponseRequest
from app.protocol.status import Status
from app.protocol.text import shortened
from app.protocol.types import Json
from app.queue.celery_app import Priority, QueueUnavailable, TaskQueue
from app.queue.message import Message
from app.responses.abandoned import AbandonedResponses
from app.responses.acceptor import Acceptance
from app.responses.attached import Foreground
from app.responses.ids import may_exist
from app.responses.paging import PageQuery, page_of
from app.store import journal, responses
from app.store.database import Database, StoreUnavailable
from app.store.inserts import Inserter
from app.store.rows import EndResult, Idempotency, NewResponse, ResponseRow
from app.streaming.follow import LogFollower
from app.streaming.pubsub import PubSub, PubSubUnavailable
from app.streaming.subscription import Subscription
from config.models import ModelCatalog
from config.settings import Settings

log = logging.getLogger("longhaul.api")


Included = Sequence[tuple[str, str]]
"""What a reader wants to be there, each with the name of the parameter that says so."""

CLOSE_SECONDS = 2.0
_LONG_LOG_BYTES = 256 * 1024


def no_such_response(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{shortened(response_id)}' not found.", code="response_not_found")


def events_expired() -> InvalidRequest:
    return InvalidRequest("The events of this response are no longer kept.", "stream", "events_expired")


OPENED = 1
"""The number of the last of the events that a response is stored with: created, queued."""


class ResponseService:
    """What can be done with responses. Raises StoreUnavailable wherever Postgres is away."""

    def __init__(
        self,
        db: Database,
        pubsub: PubSub,
        queue: TaskQueue,
        catalog: ModelCatalog,
        settings: Settings,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.acceptance = Acceptance(db, catalog, settings, now)
        self._db = db
        self._pubsub = pubsub
        self._queue = queue
        self._settings = settings
        self._now = now
        self._background = BackgroundTasks()
        self._orphans = AbandonedResponses(self._cancel_orphan)
        self._intake = Inserter(db, self._created)
        self._cancels = Batcher(self._cancel_all, max_items=responses.MOST_CANCELLED, shared_errors=(StoreUnavailable,))

    async def close(self) -> None:
        """Finishes what is under way, within a few seconds."""
        await self._background.close(CLOSE_SECONDS)
        await self._orphans.close(CLOSE_SECONDS)
        await self._background.close(CLOSE_SECONDS)
        await self._intake.close()
        await self._cancels.close()

    # -- creating ------------------------------------------------------------------------------------------

    async def start(self, project: str, request: ResponseRequest, key: str | None = None) -> Json:
        """Accepts a background request; returns its response object, `queued`.

        Where the project has used the key before, it is that response as it is now. Raises NotFound and
        InvalidRequest.
        """
        idempotency = _idempotency(request, key)
        row = await self._repeated(project, idempotency)
        if row is None:
            accepted = await self.acceptance.accept(project, request, idempotency)
            row = await self._submit(accepted.row)
            if row is None:
                return accepted.response
            _check_same(row, idempotency)
        return await self.get(project, row.id)

    @asynccontextmanager
    async def foreground(
        self,
        project: str,
        request: ResponseRequest,
        key: str | None = None,
        priority: Priority | None = None,
        unstored: Collection[str] = (),
    ) -> AsyncIterator[Foreground]:
        """Accepts a request whose client waits: leaving this context before its end cancels the response.

        With a key it goes on, and whoever repeats the request gets its answer. It may continue responses among
        `unstored`, too. Raises NotFound and InvalidRequest; Unavailable where Redis is away, before anything is stored.
        """
        idempotency = _idempotency(request, key)
        known = await self._repeated(project, idempotency)
        if known is None:
            accepted = await self.acceptance.accept(project, request, idempotency, priority, unstored)
            if not self._pubsub.connected:
                raise Unavailable("Redis cannot be reached at the moment; try again, or send 'background': true.")
            async with self._pubsub.subscribe(accepted.row.id) as subscription:
                known = await self._submit(accepted.row)
                if known is None:
                    pulses = self._follow(accepted.row.id, subscription, opening=accepted.row.opening)
                    waiting = self._foreground(project, accepted.row.id, pulses, cancels=key is None)
                    async with aclosing(pulses):
                        try:
                            yield waiting
                        finally:
                            waiting.leave()
                    return
            _check_same(known, idempotency)
        if request.stream and self._is_log_gone(known):
            raise events_expired()
        async with aclosing(self.events(known.id)) as pulses:
            yield self._foreground(project, known.id, pulses, cancels=False)

    def _foreground(
        self, project: str, response_id: str, pulses: AsyncGenerator[Chunk | None, None], *, cancels: bool
    ) -> Foreground:
        abandon = self._orphans.add if cancels else lambda _: None
        return Foreground(response_id, OPENED, pulses, partial(self._row, project, response_id), abandon)

    async def _repeated(self, project: str, idempotency: Idempotency | None) -> ResponseRow | None:
        """The response of an earlier request with this key. Raises InvalidRequest where its body was another."""
        if idempotency is None:
            return None
        row = await responses.get_by_key(self._db, project, idempotency.key)
        if row is not None:
            _check_same(row, idempotency)
        return row

    async def _submit(self, row: NewResponse) -> ResponseRow | None:
        """Inserts the row whatever becomes of the caller, and returns None; its message is sent then (`_created`).

        Where its key has a response already, that one is returned. Where the insert may or may not have taken
        effect, the response is cancelled: nobody will know its id (but whoever has its key: maintenance sends it).
        """
        abandon = self._orphans.add if row.idempotency is None else lambda _: None
        inserting = self._background.start(self._intake.create(row))
        try:
            return await asyncio.shield(inserting)
        except asyncio.CancelledError:
            inserting.add_done_callback(lambda _: abandon(row.id))
            raise
        except StoreUnavailable:
            abandon(row.id)
            raise

    def _created(self, rows: Sequence[NewResponse]) -> None:
        if rows:
            self._background.start(self._send([Message(row.id, row.model, row.queue, row.priority) for row in rows]))

    async def _send(self, messages: Sequence[Message]) -> None:
        try:
            await self._queue.enqueue_all(messages)
        except QueueUnavailable as error:
            log.warning("%d message(s) not sent (%s); maintenance will send them", len(messages), error)

    # -- reading -------------------------------------------------------------------------------------------

    async def get(self, project: str, response_id: str, included: Included = ()) -> Json:
        """The response object, with the output so far while it is in progress.

        Raises NotFound, and InvalidRequest where something `included` is not in it.
        """
        row = await self._known(project, response_id)
        _check_included(row, included)
        if row.status is not Status.IN_PROGRESS:
            return row.as_object()
        reading = await journal.read(self._db, response_id)
        if reading.ended:  # just now: its row has all of it
            return (await self._known(project, response_id)).as_object()
        return row.as_object(await _output_of(b"".join(chunk.frames for chunk in reading.chunks)))

    async def replay(
        self, project: str, response_id: str, after: int, included: Included = ()
    ) -> AsyncGenerator[Chunk | None, None]:
        """The events after number `after`, and those to come, until the response's end.

        Raises NotFound, and InvalidRequest where its events cannot be read (again).
        """
        row = await self._known(project, response_id)
        _check_included(row, included)
        if not (row.background and row.stream):
            message = "Only a response that was created with 'stream' and 'background' true can be streamed again."
            raise InvalidRequest(message, "stream", "response_not_streamable")
        if self._is_log_gone(row):
            raise events_expired()
        return self.events(response_id, after)

    async def input_items(self, project: str, response_id: str, query: PageQuery) -> Json:
        """A page of what the response was asked: its own input, not what it continues. Raises NotFound."""
        row = await self._known(project, response_id)
        return page_of(row.request["input"], query)

    def _is_log_gone(self, row: ResponseRow) -> bool:
        """Whether retention took the events, or may take them at any moment."""
        kept = timedelta(seconds=self._settings.event_retention_seconds)
        return row.log == "deleted" or (row.finished_at is not None and row.finished_at + kept < self._now())

    async def events(self, response_id: str, after: int = -1) -> AsyncGenerator[Chunk | None, None]:
        """`replay` of a response that is known to have events. Survives the absence of Postgres and Redis."""
        async with (
            self._pubsub.subscribe(response_id) as subscription,
            aclosing(self._follow(response_id, subscription, after)) as pulses,
        ):
            async for pulse in pulses:
                yield pulse

    def _follow(
        self, response_id: str, subscription: Subscription, after: int = -1, opening: Chunk | None = None
    ) -> AsyncGenerator[Chunk | None, None]:
        settings = self._settings
        follower = LogFollower(
            partial(journal.read, self._db, response_id),
            subscription,
            after,
            poll=settings.reader_poll_seconds,
            idle=settings.keepalive_seconds,
        )
        return follower.follow(opening)

    async def _known(self, project: str, response_id: str) -> ResponseRow:
        row = await self._row(project, response_id)
        if row is None:
            raise no_such_response(response_id)
        return row

    async def _row(self, project: str, response_id: str) -> ResponseRow | None:
        return await responses.get(self._db, project, response_id) if may_exist(response_id) else None

    # -- ending --------------------------------------------------------------------------------------------

    async def cancel(self, project: str, response_id: str) -> Json:
        """Cancels a background response; returns it as it is now, cancelled or ended otherwise before.

        Raises NotFound, and InvalidRequest for a foreground response: its client leaves instead.
        """
        cancellation = await self._cancels.submit((project, response_id)) if may_exist(response_id) else None
        if cancellation is None:
            await self._known(project, response_id)
            message = "Only a response that was created with 'background' true can be cancelled."
            raise InvalidRequest(message, code="response_not_cancellable")
        self._background.start(self._announce(cancellation))
        return cancellation.row.as_object()

    async def _cancel_all(self, wanted: Sequence[tuple[str, str]]) -> list[EndResult | None]:
        """Of (project, id), each project's together."""
        cancelled: dict[str, Iterator[EndResult | None]] = {}
        for project in {project for project, _ in wanted}:
            ids = [response_id for its, response_id in wanted if its == project]
            cancelled[project] = iter(await responses.cancel_all(self._db, ids, project, only_background=True))
        return [next(cancelled[project]) for project, _ in wanted]

    async def delete(self, project: str, response_id: str) -> None:
        """Deletes a response and its events; one that is not final is cancelled first. Raises NotFound."""
        deleted = await responses.delete(self._db, project, response_id) if may_exist(response_id) else None
        if deleted is None:
            raise no_such_response(response_id)
        self._background.start(self._announce(deleted))

    async def _cancel_orphan(self, response_id: str) -> None:
        cancellation = await responses.cancel(self._db, response_id, None)
        if cancellation is not None and cancellation.chunk is not None:
            log.info("%s: cancelled, its client left", response_id)
            await self._announce(cancellation)

    async def _announce(self, cancellation: EndResult) -> None:
        """Tells readers and workers of an end that Postgres already knows. Best effort: both would find out."""
        if cancellation.chunk is None:
            return
        try:
            await self._pubsub.publish([cancellation.chunk])
        except PubSubUnavailable as error:
            log.warning("%s: cancellation not published (%s)", cancellation.row.id, error)
        await self._queue.revoke(cancellation.row.id)


def _idempotency(request: ResponseRequest, key: str | None) -> Idempotency | None:
    return None if key is None else Idempotency(key, request.fingerprint())


def _check_included(row: ResponseRow, included: Included) -> None:
    """What tools return is only kept for those who asked for it when the response was created."""
    for name, value in included:
        if value in HOSTED_INCLUDES and value not in row.request["include"]:
            message = f"'{name}': '{value}' was not included when the response was created."
            raise InvalidRequest(message, name, "invalid_value")


def _check_same(row: ResponseRow, idempotency: Idempotency | None) -> None:
    if idempotency is None or row.fingerprint != idempotency.fingerprint:
        message = "The Idempotency-Key was used for a request with another body."
        raise InvalidRequest(message, "Idempotency-Key", "idempotency_key_reused")


async def _output_of(encoded: bytes) -> list[Json]:
    """The output items that these frames tell of."""
    if len(encoded) > _LONG_LOG_BYTES:
        return await asyncio.to_thread(_fold_output, encoded)
    return _fold_output(encoded)


def _fold_output(encoded: bytes) -> list[Json]:
    output: list[Json] = fold(frames.decode(encoded)).response["output"]
    return output
