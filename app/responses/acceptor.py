"""From a request to a response that may be stored: its model, its place in the queue, what it continues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.machine import ResponseStream
from app.protocol.item_types import ITEM_REFERENCE
from app.protocol.requests.capabilities import Capabilities, check_capabilities
from app.protocol.requests.consistency import CONTEXTS, check_calls
from app.protocol.requests.request import ResponseRequest
from app.protocol.response import response_object
from app.protocol.status import Status
from app.protocol.text import shortened
from app.protocol.types import Json
from app.queue.celery_app import Priority
from app.responses.approvals import check_approvals, has_answers
from app.responses.deadlines import limits_of
from app.responses.ids import may_exist, new_response_id
from app.responses.mcp_servers import check_servers
from app.store import conversations, responses
from app.store.context import ContextGone, chain_items, conversation_context
from app.store.database import Database
from app.store.items import find_items
from app.store.keys import SharedSealer
from app.store.rows import Idempotency, NewResponse
from app.store.sealing import BadSeal, SealedKind, seal_headers
from config.models import ModelCatalog, ServedModel
from config.settings import Settings

_CONTINUABLE = frozenset({Status.COMPLETED, Status.INCOMPLETE})


def no_such_model(name: str) -> NotFound:
    """OpenAI's answer to an unknown model in `/v1/responses` (404 since September 2026; litellm#39457)."""
    return NotFound(f"The model '{shortened(name)}' does not exist.", "model", "model_not_found")


def no_such_conversation(conversation_id: str, param: str | None = None) -> NotFound:
    message = f"Conversation with id '{shortened(conversation_id)}' not found."
    return NotFound(message, param, "conversation_not_found")


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request as it goes into the store, and the response object that says so."""

    row: NewResponse
    response: Json


class Acceptance:
    """Raises StoreUnavailable wherever Postgres is away."""

    def __init__(self, db: Database, catalog: ModelCatalog, settings: Settings, now: Callable[[], datetime]) -> None:
        self._db = db
        self.seals = SharedSealer(db)
        self._catalog = catalog
        self._settings = settings
        self._now = now

    @property
    def only_model(self) -> str | None:
        """The served model, where there is just one."""
        served = self._catalog.served
        return served[0].name if len(served) == 1 else None

    def model(self, name: str) -> ServedModel:
        """The served model of that name. Raises NotFound."""
        if (model := self._catalog.get(name)) is None:
            raise no_such_model(name)
        return model

    async def accept(
        self,
        project: str,
        request: ResponseRequest,
        idempotency: Idempotency | None = None,
        priority: Priority | None = None,
        unstored: Collection[str] = (),
    ) -> Accepted:
        """A response that is about to be stored; it may continue those `unstored` ones, too.

        Raises NotFound and InvalidRequest.
        """
        model, response_id = self.model(request.model), new_response_id()
        limits = limits_of(request.fields, model, self._settings)
        document = request.stored(response_id, model.default_sampling)
        document["conversation_until"] = await self._check_context(project, request, unstored)
        document["input"] = await self.resolved(project, document["input"])
        _check_document(document, model)
        check_servers(request.fields.tools or (), self._catalog.tools)
        await self._check_approvals(project, document)
        document["secrets"] = await self._sealed(request)
        created_at = self._now()
        stream = ResponseStream(
            response_object(document, response_id=response_id, created_at=int(created_at.timestamp()))
        )
        opening = frames.encode_all(stream.accept())
        row = NewResponse(
            id=response_id,
            project=project,
            model=model.name,
            queue=model.queue,
            priority=Priority.of(request.tier, background=request.background) if priority is None else priority,
            request=document,
            created_at=created_at,
            opening=Chunk(response_id, 0, stream.next_sequence - 1, 0, (), opening),
            queue_seconds=limits.queue_seconds,
            run_seconds=limits.run_seconds,
            idempotency=idempotency,
        )
        return Accepted(row, stream.response)

    async def _check_context(self, project: str, request: ResponseRequest, unstored: Collection[str]) -> int | None:
        """What it continues must be there, and done (it may still go before a worker reads it).

        Returns the position in its conversation up to which it continues it.
        """
        if (previous := request.fields.previous_response_id) is not None:
            await self._check_previous(project, previous, unstored)
        if (conversation := request.fields.conversation_id) is None:
            return None
        if not (may_exist(conversation) and await conversations.get(self._db, project, conversation)):
            raise no_such_conversation(conversation, "conversation")
        return await conversations.last_position(self._db, conversation)

    async def _check_previous(self, project: str, response_id: str, unstored: Collection[str]) -> None:
        row = await responses.get(self._db, project, response_id) if may_exist(response_id) else None
        where = "previous_response_id"
        if row is None or not (row.store or response_id in unstored):
            raise _no_such_previous(response_id)
        if row.status not in _CONTINUABLE:
            message = f"The previous response is '{row.status.value}': only a completed or incomplete one continues."
            raise InvalidRequest(message, where, "previous_response_not_finished")

    async def _check_approvals(self, project: str, document: Json) -> None:
        """Answers to approval requests must fit the context. Raises InvalidRequest."""
        items = document["input"]
        if not has_answers(items):
            return
        context: list[Json] = []
        if (previous := document["previous_response_id"]) is not None:
            try:
                context = await chain_items(self._db, project, previous)
            except ContextGone:
                raise _no_such_previous(previous) from None
        elif document["conversation"] is not None:
            until = document["conversation_until"]
            context = await conversation_context(self._db, document["conversation"]["id"], until)
        check_approvals(context, items, document["tools"])

    async def _sealed(self, request: ResponseRequest) -> dict[str, str]:
        """Headers for MCP servers, by `server_label`, as nobody can read them in the store."""
        secrets = request.secrets()
        if not secrets:
            return {}
        seal = await self.seals.get()
        return {label: seal_headers(seal, headers) for label, headers in secrets.items()}

    async def resolved(self, project: str, items: list[Json], field: str = "input") -> list[Json]:
        """Stored items in place of references, and the text of reasoning that came without.

        Raises NotFound, about an item of the request's `field`.
        """
        wanted = {item["id"] for item in items if item["type"] == ITEM_REFERENCE or _is_empty_reasoning(item)}
        await self._check_seals(items, field)
        found = await find_items(self._db, project, wanted)
        for index, item in enumerate(items):
            if item["type"] == ITEM_REFERENCE and item["id"] not in found:
                message = f"Item with id '{shortened(item['id'])}' not found."
                raise NotFound(message, f"{field}[{index}].id", "item_not_found")
        return [_replaced(item, found) for item in items]

    async def _check_seals(self, items: list[Json], field: str) -> None:
        sealed = [(index, item) for index, item in enumerate(items) if item.get("encrypted_content")]
        if not sealed:
            return
        seal = await self.seals.get()
        for index, item in sealed:
            try:
                seal.unseal(SealedKind(item["type"]), item["encrypted_content"])
            except BadSeal:
                where = f"{field}[{index}].encrypted_content"
                message = f"Invalid '{where}': it was not made by this server."
                raise InvalidRequest(message, where, "invalid_encrypted_content") from None


def _no_such_previous(response_id: str) -> InvalidRequest:
    message = f"Previous response with id '{shortened(response_id)}' not found."
    return InvalidRequest(message, "previous_response_id", "previous_response_not_found")


def _replaced(item: Json, found: Mapping[str, Json]) -> Json:
    stored = found.get(item["id"], item)
    is_meant = item["type"] == ITEM_REFERENCE or (_is_empty_reasoning(item) and stored["type"] == item["type"])
    return stored if is_meant else item


def _is_empty_reasoning(item: Json) -> bool:
    """Clients that keep ids only send it so; its text is where it was made."""
    texts = ("content", "summary", "encrypted_content")
    return item["type"] == "reasoning" and not any(item[name] for name in texts)


def _check_document(document: Json, model: ServedModel) -> None:
    """Raises InvalidRequest."""
    if all(document[name] is None for name in CONTEXTS):
        check_calls(document["input"])
    abilities = Capabilities(
        images=model.images,
        tools=model.harmony or model.tool_parser is not None,
        reasoning=model.harmony or model.reasoning_parser is not None,
        verbosity=model.verbosity,
        harmony=model.harmony,
    )
    check_capabilities(document, abilities)
