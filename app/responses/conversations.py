"""The rules of `/v1/conversations`. No HTTP here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.requests.conversation import CreateConversation, CreateItems, UpdateConversation, stored_items
from app.protocol.requests.items import Item
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.acceptor import no_such_conversation
from app.responses.ids import may_exist, new_conversation_id, random_suffix
from app.responses.paging import PageQuery, list_object, no_such_place
from app.store import conversations as store
from app.store.conversations import ConversationRow, DuplicateItem
from app.store.database import Database

Resolve = Callable[[str, list[Json], str], Awaitable[list[Json]]]


class ConversationService:
    """What can be done with conversations. Raises StoreUnavailable wherever Postgres is away.

    `resolve` puts stored items in the place of references (`Acceptance.resolved`).
    """

    def __init__(self, db: Database, resolve: Resolve) -> None:
        self._db = db
        self._resolve = resolve

    async def create(self, project: str, request: CreateConversation) -> Json:
        """Raises InvalidRequest and NotFound, about items."""
        items = await self._items(project, request.items or [])
        row = ConversationRow(new_conversation_id(), project, request.metadata or {}, datetime.now(UTC))
        try:
            await store.create(self._db, row, items)
        except DuplicateItem as error:
            raise _duplicate(items, error) from None
        return row.as_object()

    async def get(self, project: str, conversation_id: str) -> Json:
        """Raises NotFound."""
        return (await self._known(project, conversation_id)).as_object()

    async def update(self, project: str, conversation_id: str, request: UpdateConversation) -> Json:
        """Raises NotFound."""
        known = may_exist(conversation_id)
        row = await store.set_metadata(self._db, project, conversation_id, request.metadata or {}) if known else None
        if row is None:
            raise no_such_conversation(conversation_id)
        return row.as_object()

    async def delete(self, project: str, conversation_id: str) -> Json:
        """Its items go with it, its responses stay. Raises NotFound."""
        if not (may_exist(conversation_id) and await store.remove(self._db, project, conversation_id)):
            raise no_such_conversation(conversation_id)
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    # -- items ---------------------------------------------------------------------------------------------

    async def add_items(self, project: str, conversation_id: str, request: CreateItems) -> Json:
        """Returns a list of what was added. Raises NotFound and InvalidRequest."""
        await self._known(project, conversation_id)
        items = await self._items(project, request.items)
        try:
            if not await store.add_items(self._db, project, conversation_id, items):
                raise no_such_conversation(conversation_id)
        except DuplicateItem as error:
            raise _duplicate(items, error) from None
        return list_object(items, len(items))

    async def list_items(self, project: str, conversation_id: str, query: PageQuery) -> Json:
        """Raises NotFound and InvalidRequest."""
        await self._known(project, conversation_id)
        found = await store.list_items(
            self._db, conversation_id, query.after, query.limit + 1, descending=query.descending
        )
        if found is None:
            assert query.after is not None
            raise no_such_place(query.after)
        return list_object(found, query.limit)

    async def get_item(self, project: str, conversation_id: str, item_id: str) -> Json:
        """Raises NotFound."""
        await self._known(project, conversation_id)
        item = await store.get_item(self._db, project, conversation_id, item_id) if may_exist(item_id) else None
        if item is None:
            raise _no_such_item(item_id)
        return item

    async def delete_item(self, project: str, conversation_id: str, item_id: str) -> Json:
        """Returns the conversation. Raises NotFound."""
        row = await self._known(project, conversation_id)
        if not (may_exist(item_id) and await store.remove_item(self._db, conversation_id, item_id)):
            raise _no_such_item(item_id)
        return row.as_object()

    async def _items(self, project: str, items: list[Item]) -> list[Json]:
        return await self._resolve(project, stored_items(items, random_suffix()), "items")

    async def _known(self, project: str, conversation_id: str) -> ConversationRow:
        row = await store.get(self._db, project, conversation_id) if may_exist(conversation_id) else None
        if row is None:
            raise no_such_conversation(conversation_id)
        return row


def _no_such_item(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{shortened(item_id)}' not found in this conversation.", code="item_not_found")


def _duplicate(items: list[Json], error: DuplicateItem) -> InvalidRequest:
    places = [index for index, item in enumerate(items) if item["id"] == error.item_id]
    where = f"items[{places[-1]}].id"
    message = f"Invalid '{where}': the conversation has an item with the id '{error.item_id}' already."
    return InvalidRequest(message, where, "duplicate_item")
