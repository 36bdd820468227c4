"""Items that a request refers to by id, and items that this server sealed for its client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.item_types import ITEM_REFERENCE
from app.protocol.text import shortened
from app.protocol.types import Json
from app.store.database import Database
from app.store.items import find_items
from app.store.keys import SharedSealer
from app.store.sealing import BadSeal, SealedKind


class ReferenceResolver:
    """Replaces references to stored items by the items themselves."""

    def __init__(self, db: Database, sealer: SharedSealer) -> None:
        self._db = db
        self._sealer = sealer

    async def resolve(self, project: str, items: Sequence[Json], param: str = "input") -> list[Json]:
        """Returns the items with stored ones in place of references and of reasoning that came without its text.

        `param` is the request's field that holds the items. Raises NotFound for an unknown reference, InvalidRequest
        for encrypted content that this server did not make, and StoreUnavailable.
        """
        await self._check_seals(items, param)
        referenced = {item["id"] for item in items if item["type"] == ITEM_REFERENCE or _is_empty_reasoning(item)}
        found = await find_items(self._db, project, referenced)
        for index, item in enumerate(items):
            if item["type"] == ITEM_REFERENCE and item["id"] not in found:
                message = f"Item with id '{shortened(item['id'])}' not found."
                raise NotFound(message, f"{param}[{index}].id", "item_not_found")
        return [_resolved(item, found) for item in items]

    async def _check_seals(self, items: Sequence[Json], param: str) -> None:
        sealed = [(index, item) for index, item in enumerate(items) if item.get("encrypted_content")]
        if not sealed:
            return
        sealer = await self._sealer.get()
        for index, item in sealed:
            try:
                sealer.unseal(SealedKind(item["type"]), item["encrypted_content"])
            except BadSeal:
                where = f"{param}[{index}].encrypted_content"
                message = f"Invalid '{where}': this server did not make it. Send it exactly as it was received."
                raise InvalidRequest(message, where, "invalid_encrypted_content") from None


def _resolved(item: Json, found: Mapping[str, Json]) -> Json:
    stored = found.get(item["id"], item)
    refers = item["type"] == ITEM_REFERENCE or (_is_empty_reasoning(item) and stored["type"] == item["type"])
    return stored if refers else item


def _is_empty_reasoning(item: Json) -> bool:
    """Clients that keep only ids send reasoning without its text; the stored item has it."""
    texts = ("content", "summary", "encrypted_content")
    return item["type"] == "reasoning" and not any(item.get(name) for name in texts)
