"""Creating responses, without HTTP: the one entry for routes and WebSocket sessions.

Every response takes the same path: insert as `queued` with its opening events, commit, send its message. A message
that cannot be sent is no error: maintenance sends it again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import orjson

from app.aio import BackgroundTasks
from app.announcer import CLOSE_SECONDS
from app.dispatcher import Dispatcher
from app.heavy import off_loop
from app.protocol.errors import Unavailable
from app.protocol.limits import Allowance
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.response import brief_object
from app.protocol.types import Json
from app.queue.publisher import TaskQueue
from app.responses.create.acceptor import AcceptedRequest, RequestAcceptor
from app.responses.create.counter import PromptCounter
from app.responses.create.creator import ResponseCreator
from app.responses.read.attached import AttachedResponse
from app.responses.read.canceller import ResponseCanceller
from app.responses.read.reader import Events, Pulse, ResponseReader, Shown
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.responses.lookup import Hold
from app.store.rows import NOWHERE, Idempotency, Origin, ResponseFlags
from app.streaming.pubsub import PubSub
from config.logging.context import note_response
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class CreatedResponse:
    """A new response, or the one that a repeated key has."""

    shown: Shown
    allowance: Allowance | None = None
    """What the limits of the project leave; None: it has none, or the response was created before."""


@asynccontextmanager
async def _attached_to(attached: AttachedResponse, pulses: AsyncGenerator[Pulse, None]) -> AsyncIterator[None]:
    """The client that created the response is attached to it: when it leaves, the response is abandoned."""
    async with aclosing(pulses):
        try:
            yield
        finally:
            attached.detach()


def _keep() -> None:
    """Called in place of abandoning: the response goes on without its client."""


class ResponseService:
    """Creates responses. Every method raises StoreUnavailable while Postgres cannot be reached."""

    def __init__(
        self,
        db: Database,
        acceptor: RequestAcceptor,
        sealer: SharedSealer,
        pubsub: PubSub,
        queue: TaskQueue,
        reader: ResponseReader,
        canceller: ResponseCanceller,
        settings: Settings,
    ) -> None:
        self._db = db
        self._pubsub = pubsub
        self._background = BackgroundTasks()
        self._acceptor = acceptor
        self.counter = PromptCounter(db, acceptor, sealer, pubsub, queue, reader.readers, settings)
        self._reader = reader
        self._canceller = canceller
        dispatcher = Dispatcher(db, queue)
        self.nudge = dispatcher.nudge
        """Sends what waits in a queue, soon."""
        self._creator = ResponseCreator(db, queue, dispatcher, self._background, canceller.abandon)

    async def close(self) -> None:
        """Finishes the work in the background, within a few seconds."""
        await self.counter.close()
        await self._background.close(CLOSE_SECONDS)
        await self._canceller.end_abandoned(CLOSE_SECONDS)
        await self._background.close(CLOSE_SECONDS)
        await self._creator.close()

    async def start(
        self, project: str, request: ResponseRequest, key: str | None, origin: Origin, hold: Hold
    ) -> CreatedResponse:
        """Creates a background response, `queued`.

        If the project has used the idempotency key before, returns that response as it is now, a large one once `hold`
        has room for it. Raises NotFound, InvalidRequest and LimitReached.
        """
        response_id, allowance, accepted = await self._create(project, request, key, origin)
        if accepted is None:
            return CreatedResponse(await self._reader.get(project, response_id, (), hold))
        encode, size = partial(orjson.dumps, accepted.response), accepted.row.size
        return CreatedResponse(Shown(await off_loop(encode, size), False), allowance)

    async def start_stream(self, project: str, request: ResponseRequest, key: str | None, origin: Origin) -> Events:
        """`start` of a response whose events its caller reads at once, and holds a reader's place for.

        If the project has used the idempotency key before, returns what `ResponseReader.replay` does.
        """
        response_id, allowance, accepted = await self._create(project, request, key, origin)
        if accepted is not None:
            return Events(self._reader.events(project, response_id, _brief(accepted.response)), allowance)
        # An old response, whose events may be deleted already.
        return await self._reader.replay(project, response_id, -1)

    async def _create(
        self, project: str, request: ResponseRequest, key: str | None, origin: Origin
    ) -> tuple[str, Allowance | None, AcceptedRequest | None]:
        """Returns the id, what the limits leave, and what was accepted: nothing if the key was used before."""
        idempotency = await _idempotency(request, key)
        existing = await self._creator.find_repeated(project, idempotency)
        if existing is None:
            with ExitStack() as held:
                accepted = await self._acceptor.accept(project, request, held, idempotency, origin=origin)
                inserted = await self._creator.insert(accepted.row)
            if not isinstance(inserted, ResponseFlags):
                return accepted.row.id, inserted, accepted
            existing = inserted
        note_response(existing.id)
        return existing.id, None, None

    @asynccontextmanager
    async def attach(
        self,
        project: str,
        request: ResponseRequest,
        key: str | None = None,
        unstored: Collection[str] = (),
        origin: Origin = NOWHERE,
    ) -> AsyncIterator[AttachedResponse]:
        """Creates a foreground response; leaving the context before its end cancels the response.

        With an idempotency key it goes on, and a repeated request is attached to it. The request may continue the
        responses `unstored`, too. Raises NotFound, InvalidRequest, LimitReached and BoundReached, and Unavailable while
        Redis cannot be reached: then nothing is stored.
        """
        with self._reader.readers.take(project), ExitStack() as held:
            idempotency = await _idempotency(request, key)
            existing = await self._creator.find_repeated(project, idempotency)
            if existing is None:
                accepted = await self._acceptor.accept(project, request, held, idempotency, unstored, origin)
                row, shown = accepted.row, _brief(accepted.response)
                del accepted
                if not self._pubsub.connected:
                    raise Unavailable(
                        "Redis cannot be reached at the moment; try again, or create the response in the background."
                    )
                async with self._pubsub.subscribe(row.id) as subscription:
                    inserted = await self._creator.insert(row)
                    held.close()
                    if not isinstance(inserted, ResponseFlags):
                        pulses = self._reader.follow(project, row.id, subscription, shown, opening=row.opening)
                        abandon = partial(self._canceller.abandon, row.id) if row.idempotency is None else _keep
                        attached = self._attached(project, row.id, pulses, abandon, inserted)
                        del request, row  # They are large, and stored; this response may take hours.
                        async with _attached_to(attached, pulses):
                            yield attached
                        return
                    existing = inserted
                    del inserted, row
            if request.stream:
                self._reader.check_log(existing)
            response_id, shown = existing.id, existing.as_brief_object()
            note_response(response_id)
            del request, existing  # They are large, and the response may take hours.
            async with aclosing(self._reader.events(project, response_id, shown)) as pulses:
                yield self._attached(project, response_id, pulses)

    def _attached(
        self,
        project: str,
        response_id: str,
        pulses: AsyncGenerator[Pulse, None],
        abandon: Callable[[], None] = _keep,
        allowance: Allowance | None = None,
    ) -> AttachedResponse:
        return AttachedResponse(self._db, project, response_id, pulses, abandon, allowance)


def _brief(response: Json) -> Json:
    return brief_object(response["model"], response["id"], response["created_at"])


async def _idempotency(request: ResponseRequest, key: str | None) -> Idempotency | None:
    if key is None:
        return None
    return Idempotency(key, await off_loop(request.fingerprint, request.size, request.item_count))
