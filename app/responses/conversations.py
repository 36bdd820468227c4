"""The rules of `/v1/conversations`, without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial

from app.heavy import off_loop
from app.ids import new_id, random_suffix
from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.requests.bodies.conversation import CreateConversation, CreateItems, UpdateConversation
from app.protocol.requests.items.any_item import Item, stored_items
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.create.continuation import ContextLimits, no_such_conversation
from app.responses.create.references import ReferenceResolver
from app.responses.models.catalog import PermittedCatalogs
from app.responses.paging import Encoded, encoded_list
from app.sizes import item_count
from app.store.context import conversations as store
from app.store.context.conversations import ConversationRow, DuplicateItem, NewItem, bytes_of
from app.store.context.size import ContextSize
from app.store.database import Database
from app.store.paging import Page
from app.store.responses.lookup import Hold
from config.settings import Settings


class ConversationService:
    """What a client can do with conversations. Every method raises StoreUnavailable while Postgres cannot be reached.

    Every method that takes a `conversation_id` raises NotFound if there is no such conversation.
    """

    def __init__(
        self, db: Database, references: ReferenceResolver, catalogs: PermittedCatalogs, settings: Settings
    ) -> None:
        self._db = db
        self._catalogs = catalogs
        self._limits = ContextLimits.of(settings)
        self._references = references

    async def create(self, project: str, request: CreateConversation, size: int) -> Json:
        """Returns the new conversation of a request with `size` bytes.

        Raises InvalidRequest and NotFound for its items, and LimitReached.
        """
        with ExitStack() as held:
            items = await self._encoded(project, request.items or [], size, held)
            self._check_size(items)(ContextSize())
            row = ConversationRow(new_id("conv"), project, request.metadata or {}, datetime.now(UTC))
            try:
                await store.create(self._db, row, items, is_limited=await self._catalogs.is_limited(project))
            except DuplicateItem as error:
                raise _duplicate(items, error) from None
            return row.as_object()

    async def get(self, project: str, conversation_id: str) -> Json:
        return (await self._row(project, conversation_id)).as_object()

    async def update(self, project: str, conversation_id: str, request: UpdateConversation) -> Json:
        """Replaces the metadata; returns the conversation. Raises LimitReached."""
        metadata, is_limited = request.metadata or {}, await self._catalogs.is_limited(project)
        row = await store.set_metadata(self._db, project, conversation_id, metadata, is_limited=is_limited)
        if row is None:
            raise no_such_conversation(conversation_id)
        return row.as_object()

    async def delete(self, project: str, conversation_id: str) -> Json:
        """Deletes the conversation and its items; its responses stay."""
        if not await store.remove(self._db, project, conversation_id):
            raise no_such_conversation(conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    async def add_items(self, project: str, conversation_id: str, request: CreateItems, size: int) -> Encoded:
        """Returns a list of the items that a request with `size` bytes adds.

        Raises InvalidRequest, NotFound for an unknown reference, and LimitReached.
        """
        await self._row(project, conversation_id)
        with ExitStack() as held:
            items = await self._encoded(project, request.items, size, held)
            check, is_limited = self._check_size(items), await self._catalogs.is_limited(project)
            try:
                if not await store.add_items(self._db, project, conversation_id, items, check, is_limited=is_limited):
                    raise no_such_conversation(conversation_id)
            except DuplicateItem as error:
                raise _duplicate(items, error) from None
            return encoded_list([(item.id, item.item) for item in items], has_more=False)

    async def list_items(self, project: str, conversation_id: str, page: Page, hold: Hold) -> Encoded:
        """Returns a page of items, once `hold` has room for it. Raises UnknownCursor."""
        await self._row(project, conversation_id)
        items, has_more = await store.list_items(self._db, project, conversation_id, page, hold)
        return encoded_list(items, has_more=has_more)

    async def get_item(self, project: str, conversation_id: str, item_id: str, hold: Hold) -> Encoded:
        """Returns an item, once `hold` has room for it. Raises NotFound for an unknown item, too."""
        await self._row(project, conversation_id)
        item = await store.get_item(self._db, project, conversation_id, item_id, hold)
        if item is None:
            raise _no_such_item(item_id)
        return item

    async def delete_item(self, project: str, conversation_id: str, item_id: str) -> Json:
        """Returns the conversation. Raises NotFound for an unknown item, too."""
        row = await self._row(project, conversation_id)
        if not await store.remove_item(self._db, project, conversation_id, item_id):
            raise _no_such_item(item_id)
        return row.as_object()

    async def _encoded(self, project: str, items: list[Item], size: int, held: ExitStack) -> list[NewItem]:
        """`size`: the bytes of the request that brought the items."""
        count = item_count(items)
        stored = await off_loop(partial(stored_items, items, random_suffix()), size, count)
        resolved = await self._references.resolve(project, stored, held, size=size, count=count, param="items")
        return await off_loop(lambda: [*map(NewItem.of, resolved.items)], size + resolved.bytes, count + resolved.count)

    def _check_size(self, items: list[NewItem]) -> Callable[[ContextSize], None]:
        """Returns what raises InvalidRequest if a conversation of a size would be too large with these items more."""
        added = bytes_of(items)

        def check(size: ContextSize) -> None:
            self._limits.check_conversation(ContextSize(size.count + len(items), size.bytes + added), "items")

        return check

    async def _row(self, project: str, conversation_id: str) -> ConversationRow:
        row = await store.get(self._db, project, conversation_id)
        if row is None:
            raise no_such_conversation(conversation_id)
        return row


def _no_such_item(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{shortened(item_id)}' not found in this conversation.", code="item_not_found")


def _duplicate(items: list[NewItem], error: DuplicateItem) -> InvalidRequest:
    index = max(index for index, item in enumerate(items) if item.id == error.item_id)
    where = f"items[{index}].id"
    message = f"Invalid '{where}': the conversation has an item with the id '{error.item_id}' already."
    return InvalidRequest(message, where, "duplicate_item")
