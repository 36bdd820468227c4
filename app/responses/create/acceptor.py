"""From a request to a row that may be inserted.

resolve the model -> check what it continues -> resolve references -> check tools and approvals -> seal secrets -> row
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from app.access.charges import Charges
from app.heavy import off_loop
from app.ids import new_id
from app.protocol.errors import InvalidRequest
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.machine import ResponseStream
from app.protocol.limits import SERVICE_TIERS, LimitKind
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.requests.bodies.text_config import nearest_effort
from app.protocol.requests.capabilities import applied_reasoning, check_capabilities, leave_out_images
from app.protocol.response import response_object
from app.protocol.types import Json
from app.protocol.unsealing import since_compaction
from app.queue.message import Priority
from app.responses.create.approvals import check_approvals, has_approvals
from app.responses.create.cache_salts import CacheSalts
from app.responses.create.continuation import (
    ContextLimits,
    Continuation,
    check_continuation,
    check_ids,
    check_outputs,
    earlier_approvals,
)
from app.responses.create.deadlines import deadlines_of
from app.responses.create.mcp_servers import check_servers
from app.responses.create.references import ReferenceResolver
from app.responses.create.reserving import reserving_of
from app.responses.models.catalog import PermittedCatalogs, Terms, capabilities_of, served_model
from app.responses.models.registered import RegisteredModels
from app.store.database import Database
from app.store.keys import SharedSealer, salt_key
from app.store.responses.new_rows import NewResponse
from app.store.rows import NOWHERE, BatchPlace, Idempotency, Origin
from app.store.sealing import seal_headers
from config.logging.context import note_response
from config.settings import Settings


@dataclass(frozen=True, slots=True)
class AcceptedRequest:
    """A request that passed every check: the row to insert, and the response object as it is then."""

    row: NewResponse
    response: Json


LineCheck = Callable[[ResponseRequest], str]

WINDOW_TIER = "default"
"""The service tier of work in windows."""


class RequestAcceptor:
    """Checks requests against everything that needs the store, the served models or the settings."""

    def __init__(
        self,
        db: Database,
        sealer: SharedSealer,
        references: ReferenceResolver,
        catalogs: PermittedCatalogs,
        registered: RegisteredModels,
        charges: Charges | None,
        settings: Settings,
    ) -> None:
        """Without `charges` every request is a line of a batch."""
        self._db = db
        self._charges = charges
        self._sealer = sealer
        self._salts = CacheSalts(salt_key(db))
        self._references = references
        self._catalogs = catalogs
        self._registered = registered
        self._settings = settings
        self._limits = ContextLimits.of(settings)

    async def accept(
        self,
        project: str,
        request: ResponseRequest,
        held: ExitStack,
        idempotency: Idempotency | None = None,
        unstored: Collection[str] = (),
        origin: Origin = NOWHERE,
        place: BatchPlace | None = None,
    ) -> AcceptedRequest:
        """Returns the row of a new response. Raises NotFound, InvalidRequest, LimitReached and StoreUnavailable.

        The request may continue the responses `unstored` although they have `store` false. The caller closes `held`
        once the row is inserted: what references bring in counts until then. A line of a batch, which has a `place`
        there, waits as long as its batch may run.
        """
        catalog, terms = await self._catalogs.of(project), await self._catalogs.terms(project)
        named = served_model(catalog, request.model)
        if self._charges is not None:
            await self._charges.take(project, LimitKind.REQUESTS_PER_MINUTE, named.name)
        model = await self._registered.resolved(named)
        response_id = new_id("resp")
        note_response(response_id)
        batch_seconds = None if place is None else place.window_seconds
        deadlines = deadlines_of(request.fields, model, self._settings, batch_seconds)
        limits = self._limits.for_compaction() if request.fields.compacts else self._limits
        continued = await check_continuation(self._db, project, request, unstored, limits)
        as_stored = partial(request.stored, response_id, model.default_sampling or {})
        document, size, count = await self._document(project, request, response_id, as_stored, continued, held)
        document["service_tier"] = terms.tier(request.tier)
        in_window = deadlines.window_seconds is not None
        if in_window:
            _check_tier(request, document["service_tier"], of_batch=place is not None)
        priority = Priority.of(document["service_tier"], background=request.background, in_window=in_window)
        context_bytes = continued.chain.bytes + continued.conversation_bytes
        reserving = reserving_of(
            document, terms, context_bytes, self._settings.reserved_output_tokens, model.context_length
        )
        _check_engine_priority(document["extra"], priority, terms)
        can = capabilities_of(model)
        if request.in_session:
            document["reasoning"] = nearest_effort(document["reasoning"], can)
            await off_loop(partial(leave_out_images, document, can), size, count)
        await off_loop(partial(check_capabilities, document, can, request.other_names), size, count)
        document["reasoning"] = applied_reasoning(document["reasoning"], can)
        check_servers(request.fields.tools or (), catalog.tools)
        await self._check_approvals(project, document, continued)
        stored = {**document, "secrets": await self._sealed_secrets(project, request)}
        make = partial(
            NewResponse,
            project=project,
            model=model.name,
            queue=model.queue,
            priority=priority,
            queue_seconds=deadlines.queue_seconds,
            run_seconds=deadlines.run_seconds,
            window_seconds=deadlines.window_seconds,
            idempotency=idempotency,
            chain_length=continued.chain.count + 1,
            context_bytes=continued.chain.bytes,
            origin=origin,
            reserving=reserving,
            ran_on=None if continued.previous is None else continued.previous.node,
            place=place,
        )
        return await off_loop(partial(_accepted, make, stored, response_id), size, count)

    async def line_check(self, project: str) -> LineCheck:
        """Returns what tells of a line of a batch, by its request alone, whether it may run: its model and its tier.

        It returns the queue of the line, or raises NotFound and InvalidRequest.
        """
        catalog, terms = await self._catalogs.of(project), await self._catalogs.terms(project)

        def check(request: ResponseRequest) -> str:
            model = served_model(catalog, request.model)
            _check_tier(request, terms.tier(request.tier), of_batch=True)
            return model.queue

        return check

    async def _document(
        self,
        project: str,
        request: ResponseRequest,
        response_id: str,
        as_stored: Callable[[], Json],
        continued: Continuation,
        held: ExitStack,
    ) -> tuple[Json, int, int]:
        """Returns the request with what it refers to and continues, without its secrets; its bytes, and how many items
        and parts it has. Raises as `accept`."""
        size, count = request.size, request.item_count
        sent = await off_loop(as_stored, size, count)
        await check_ids(self._db, project, continued, sent["input"], response_id, size, count)
        resolved = await self._references.resolve(
            project, sent["input"], held, size=size, count=count, spares=request.in_session
        )
        size, count = size + resolved.bytes, count + resolved.count
        if sent["previous_input_messages"] is None:  # Harmony's messages have no ids of calls.
            await check_outputs(self._db, project, continued, resolved.items, size, count)
        document = {
            **sent,
            "conversation_until": continued.last_position,
            "input": resolved.items,
            "extra": await self._salted(project, sent["extra"]),
        }
        return document, size, count

    async def _salted(self, project: str, extra: Json) -> Json:
        salt = await self._salts.salt(project, extra.get("cache_salt"))
        return extra if salt is None else {**extra, "cache_salt": salt}

    async def _check_approvals(self, project: str, document: Json, continued: Continuation) -> None:
        """Raises InvalidRequest for an approval that does not fit the items before it."""
        items = document["input"]
        if has_approvals(items):
            context = since_compaction(await earlier_approvals(self._db, project, continued))
            check_approvals(context, items, document["tools"])

    async def _sealed_secrets(self, project: str, request: ResponseRequest) -> dict[str, str]:
        """Returns the headers for MCP servers by `server_label`, sealed: no reader of the table can read them."""
        secrets = request.secrets()
        if not secrets:
            return {}
        sealer = await self._sealer.get(project)
        return {label: seal_headers(sealer, headers) for label, headers in secrets.items()}


def _accepted(make: Callable[..., NewResponse], stored: Json, response_id: str) -> AcceptedRequest:
    created_at = datetime.now(UTC)  # for clients; deadlines and retention go by the clock of Postgres
    opening, response = opening_of(stored, response_id, created_at)
    row = make(id=response_id, request=stored, created_at=created_at, opening=opening)
    row.stored  # noqa: B018 - encodes it, once
    return AcceptedRequest(row, response)


def _check_tier(request: ResponseRequest, tier: str, *, of_batch: bool) -> None:
    """Raises InvalidRequest for work in a window that would get another tier than such work has."""
    if tier == WINDOW_TIER:
        return
    where, window = "background_options.completion_window", f"'{request.fields.completion_window}'"
    if of_batch:
        where, window = "service_tier", "a batch"
    why = f"This request asks for '{tier}'." if request.tier == tier else f"The project's best is '{tier}'."
    message = f"Invalid '{where}': {window} needs the service tier '{WINDOW_TIER}'. {why}"
    raise InvalidRequest(message, where, "invalid_value")


def _check_engine_priority(extra: Json, priority: Priority, terms: Terms) -> None:
    """Raises InvalidRequest if the request would pass others in the engine, and its project may not."""
    asked = extra.get("priority")
    if asked is not None and asked < priority and terms.top_tier != SERVICE_TIERS[-1]:
        message = (
            f"Invalid 'priority': {asked}. The project's best service tier is '{terms.top_tier}', so the engine's "
            f"priority may be {priority.value} or more."
        )
        raise InvalidRequest(message, "priority", "invalid_value")


def opening_of(document: Json, response_id: str, created_at: datetime) -> tuple[Chunk, Json]:
    """Returns the first chunk of the response's log (created, queued), and the response object after it."""
    stream = ResponseStream(response_object(document, response_id=response_id, created_at=int(created_at.timestamp())))
    encoded = frames.encode_all(stream.accept())
    return Chunk(response_id, 0, stream.next_sequence - 1, 0, (), encoded), stream.response
