"""The rules of `/v1/responses`. No HTTP here: routes turn requests into calls, and refusals into statuses.

Every response takes the same way: insert as `queued` with its opening events, commit, send its message. A
message that cannot be sent is no error: maintenance sends it again. What is left to do when a request ends early
(the message, the cancellation of a foreground response) is an errand of its own and survives the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from app.api.errands import Errands
from app.api.foreground import Foreground
from app.api.ids import may_exist, new_response_id
from app.api.orphans import Orphans
from app.protocol import frames
from app.protocol.chunk import Chunk
from app.protocol.errors import InvalidRequest, NotFound, Unavailable
from app.protocol.locations import shortened
from app.protocol.request import ResponseRequest
from app.protocol.response import response_object
from app.protocol.snapshot import fold
from app.protocol.status import Status
from app.protocol.stream import ResponseStream
from app.queue import Priority, QueueUnavailable, TaskQueue
from app.relay import Relay, RelayUnavailable, Subscription
from app.store import journal, responses
from app.store.database import Database, StoreUnavailable
from app.store.rows import Cancellation, NewResponse, ResponseRow
from config.models import ModelCatalog, ServedModel
from config.settings import Settings

log = logging.getLogger("longhaul.api")

Json = dict[str, Any]

CLOSE_SECONDS = 2.0
_LONG_LOG_BYTES = 256 * 1024


def no_such_response(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{shortened(response_id)}' not found.", code="response_not_found")


def no_such_model(name: str) -> NotFound:
    """OpenAI's answer to an unknown model in `/v1/responses` (404 since September 2026; litellm#39457)."""
    return NotFound(f"The model '{shortened(name)}' does not exist.", "model", "model_not_found")


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request as it goes into the store, and the response object that says so."""

    row: NewResponse
    response: Json


class ResponseService:
    """What can be done with responses. Raises StoreUnavailable wherever Postgres is away."""

    def __init__(
        self,
        db: Database,
        relay: Relay,
        queue: TaskQueue,
        catalog: ModelCatalog,
        settings: Settings,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._db = db
        self._relay = relay
        self._queue = queue
        self._catalog = catalog
        self._settings = settings
        self._now = now
        self._errands = Errands()
        self._orphans = Orphans(self._cancel_orphan)

    async def close(self) -> None:
        """Finishes what is under way, within a few seconds."""
        await self._errands.close(CLOSE_SECONDS)
        await self._orphans.close(CLOSE_SECONDS)
        await self._errands.close(CLOSE_SECONDS)

    # -- creating ------------------------------------------------------------------------------------------

    def model(self, name: str) -> ServedModel:
        """The served model of that name. Raises NotFound."""
        if (model := self._catalog.get(name)) is None:
            raise no_such_model(name)
        return model

    async def start(self, project: str, request: ResponseRequest) -> Json:
        """Accepts a background request; returns its response object, `queued`. Raises NotFound."""
        accepted = self._accept(project, request, Priority.BACKGROUND)
        await self._submit(accepted.row)
        return accepted.response

    @asynccontextmanager
    async def foreground(self, project: str, request: ResponseRequest) -> AsyncIterator[Foreground]:
        """Accepts a request whose client waits: leaving this context before its end cancels the response.

        Raises NotFound; Unavailable where Redis is away, before anything is stored.
        """
        accepted = self._accept(project, request, Priority.FOREGROUND)
        if not self._relay.connected:
            raise Unavailable("Redis cannot be reached at the moment; try again, or send 'background': true.")
        row = accepted.row
        async with (
            self._relay.subscribe(row.id) as subscription,
            aclosing(self._follow(row.id, subscription)) as pulses,
        ):
            await self._submit(row)
            waiting = Foreground(row, pulses, partial(self._row, project, row.id), self._orphans.add)
            try:
                yield waiting
            finally:
                waiting.leave()

    def _accept(self, project: str, request: ResponseRequest, priority: Priority) -> Accepted:
        model, created_at, response_id = self.model(request.model), self._now(), new_response_id()
        document = request.stored(response_id, model.default_sampling)
        stream = ResponseStream(
            response_object(document, response_id=response_id, created_at=int(created_at.timestamp()))
        )
        opening = frames.encode_all(stream.open())
        row = NewResponse(
            id=response_id,
            project=project,
            model=model.name,
            queue=model.queue,
            priority=priority,
            request=document,
            created_at=created_at,
            opening=Chunk(response_id, 0, stream.next_sequence - 1, 0, (), opening),
            queue_seconds=self._settings.queue_timeout_seconds,
            run_seconds=self._settings.run_timeout_seconds,
        )
        return Accepted(row, stream.response)

    async def _submit(self, row: NewResponse) -> None:
        """Inserts the row whatever becomes of the caller, and has its message sent.

        Where the insert may or may not have taken effect, the response is cancelled: nobody will know its id.
        """
        inserting = self._errands.start(responses.create(self._db, row))
        try:
            await asyncio.shield(inserting)
        except asyncio.CancelledError:
            inserting.add_done_callback(lambda _: self._orphans.add(row.id))
            raise
        except StoreUnavailable:
            self._orphans.add(row.id)
            raise
        self._errands.start(self._send(row))

    async def _send(self, row: NewResponse) -> None:
        try:
            await self._queue.enqueue(row.id, row.model, row.queue, row.priority)
            await responses.mark_sent(self._db, row.id)
        except (QueueUnavailable, StoreUnavailable) as error:
            log.warning("%s: message not sent (%s); maintenance will send it", row.id, type(error).__name__)

    # -- reading -------------------------------------------------------------------------------------------

    async def get(self, project: str, response_id: str) -> Json:
        """The response object, with the output so far while it is in progress. Raises NotFound."""
        row = await self._known(project, response_id)
        if row.status is not Status.IN_PROGRESS:
            return row.as_object()
        reading = await journal.read(self._db, response_id)
        if reading.ended:  # just now: its row has all of it
            return (await self._known(project, response_id)).as_object()
        return row.as_object(await _output_of(b"".join(chunk.frames for chunk in reading.chunks)))

    async def replay(self, project: str, response_id: str, after: int) -> AsyncGenerator[Chunk | None, None]:
        """The events after number `after`, and those to come, until the response's end.

        Raises NotFound, and InvalidRequest where its events cannot be read (again).
        """
        row = await self._known(project, response_id)
        if not (row.background and row.stream):
            message = "Only a response that was created with 'stream' and 'background' true can be streamed again."
            raise InvalidRequest(message, "stream", "response_not_streamable")
        if self._is_log_gone(row):
            raise InvalidRequest("The events of this response are no longer kept.", "stream", "events_expired")
        return self.events(response_id, after)

    def _is_log_gone(self, row: ResponseRow) -> bool:
        """Whether retention took the events, or may take them at any moment."""
        kept = timedelta(seconds=self._settings.event_retention_seconds)
        return row.log == "deleted" or (row.finished_at is not None and row.finished_at + kept < self._now())

    async def events(self, response_id: str, after: int = -1) -> AsyncGenerator[Chunk | None, None]:
        """`replay` of a response that is known to have events. Survives the absence of Postgres and Redis."""
        async with (
            self._relay.subscribe(response_id) as subscription,
            aclosing(self._follow(response_id, subscription, after)) as pulses,
        ):
            async for pulse in pulses:
                yield pulse

    def _follow(
        self, response_id: str, subscription: Subscription, after: int = -1
    ) -> AsyncGenerator[Chunk | None, None]:
        settings = self._settings
        return subscription.follow(
            partial(journal.read, self._db, response_id),
            after,
            poll=settings.reader_poll_seconds,
            idle=settings.keepalive_seconds,
            unavailable=StoreUnavailable,
        )

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
        row = await self._known(project, response_id)
        if not row.background:
            message = "Only a response that was created with 'background' true can be cancelled."
            raise InvalidRequest(message, code="response_not_cancellable")
        cancellation = await responses.cancel(self._db, response_id, project)
        if cancellation is None:
            raise no_such_response(response_id)
        self._errands.start(self._announce(cancellation))
        return cancellation.row.as_object()

    async def delete(self, project: str, response_id: str) -> None:
        """Deletes a response and its events; one that is not final is cancelled first. Raises NotFound."""
        deleted = await responses.delete(self._db, project, response_id) if may_exist(response_id) else None
        if deleted is None:
            raise no_such_response(response_id)
        self._errands.start(self._announce(deleted))

    async def _cancel_orphan(self, response_id: str) -> None:
        cancellation = await responses.cancel(self._db, response_id, None)
        if cancellation is not None and cancellation.chunk is not None:
            log.info("%s: cancelled, its client left", response_id)
            await self._announce(cancellation)

    async def _announce(self, cancellation: Cancellation) -> None:
        """Tells readers and workers of an end that Postgres already knows. Best effort: both would find out."""
        if cancellation.chunk is None:
            return
        try:
            await self._relay.publish([cancellation.chunk])
        except RelayUnavailable as error:
            log.warning("%s: cancellation not published (%s)", cancellation.row.id, error)
        await self._queue.revoke(cancellation.row.id)


async def _output_of(encoded: bytes) -> list[Json]:
    """The output items that these frames tell of."""
    if len(encoded) > _LONG_LOG_BYTES:
        return await asyncio.to_thread(_fold_output, encoded)
    return _fold_output(encoded)


def _fold_output(encoded: bytes) -> list[Json]:
    output: list[Json] = fold(frames.decode(encoded)).response["output"]
    return output
