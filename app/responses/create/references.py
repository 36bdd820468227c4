"""Items that a request refers to by id, and items that this server sealed for its client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.item_types import ITEM_REFERENCE
from app.protocol.text import shortened
from app.protocol.types import Json
from app.store.context.items import find_items, measure_items
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.sealing import BadSeal, SealedKind

MAX_REFERENCES = 1000
"""Different items that one request may refer to: Postgres searches a response for each."""


@dataclass(frozen=True, slots=True)
class ReferenceLimits:
    """What the references of one request may bring in, in bytes of JSON."""

    resolved: int
    """All items together; an item counts as often as it is referred to."""
    read: int
    """Everything that is read to find them."""


class ReferenceResolver:
    """Replaces references to stored items by the items themselves."""

    def __init__(self, db: Database, sealer: SharedSealer, limits: ReferenceLimits) -> None:
        self._db = db
        self._sealer = sealer
        self._limits = limits

    async def resolve(self, project: str, items: Sequence[Json], param: str = "input") -> list[Json]:
        """Returns the items with stored ones in place of references and of reasoning that came without its text.

        `param` is the request's field that holds the items. Raises NotFound for an unknown reference, InvalidRequest
        for encrypted content that this server did not make and for references that bring in too much, and
        StoreUnavailable.
        """
        await self._check_seals(project, items, param)
        references = [(index, item["id"]) for index, item in enumerate(items) if _refers(item)]
        if not references:
            return list(items)
        found = await self._find(project, references, param)
        for index, item in enumerate(items):
            if item["type"] == ITEM_REFERENCE and item["id"] not in found:
                message = f"Item with id '{shortened(item['id'])}' not found."
                raise NotFound(message, f"{param}[{index}].id", "item_not_found")
        return [_resolved(item, found) for item in items]

    async def _find(self, project: str, references: Sequence[tuple[int, str]], param: str) -> dict[str, Json]:
        """Measures the items before it reads them: a short request must not become a large row."""
        ids = dict.fromkeys(item_id for _, item_id in references)
        if len(ids) > MAX_REFERENCES:
            first_beyond = next(index for index, item_id in references if item_id == list(ids)[MAX_REFERENCES])
            message = f"expected references to at most {MAX_REFERENCES} different items, but got {len(ids)} instead."
            raise _too_large(f"{param}[{first_beyond}]", message)
        sizes = await measure_items(self._db, project, ids)
        self._check_sizes(references, sizes.items, param)
        if sizes.read > self._limits.read:
            message = f"expected references to responses of at most {self._limits.read} bytes, but got {sizes.read}."
            raise _too_large(f"{param}[{references[0][0]}]", message)
        found = await find_items(self._db, project, ids)
        if unknown := found.keys() - sizes.items.keys():
            read = {item_id: len(orjson.dumps(found[item_id])) for item_id in unknown}
            self._check_sizes(references, {**sizes.items, **read}, param)
        return found

    def _check_sizes(self, references: Sequence[tuple[int, str]], sizes: Mapping[str, int], param: str) -> None:
        total, limit = 0, self._limits.resolved
        for index, item_id in references:
            total += sizes.get(item_id, 0)
            if total > limit:
                message = f"the items that are referred to up to here have {total} bytes; at most {limit} are accepted."
                raise _too_large(f"{param}[{index}]", message)

    async def _check_seals(self, project: str, items: Sequence[Json], param: str) -> None:
        sealed = [(index, item) for index, item in enumerate(items) if item.get("encrypted_content")]
        if not sealed:
            return
        sealer = await self._sealer.get(project)
        for index, item in sealed:
            try:
                sealer.unseal(SealedKind(item["type"]), item["encrypted_content"])
            except BadSeal:
                where = f"{param}[{index}].encrypted_content"
                message = f"Invalid '{where}': this server did not make it. Send it exactly as it was received."
                raise InvalidRequest(message, where, "invalid_encrypted_content") from None


def _too_large(where: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{where}': {message}", where, "references_too_large")


def _refers(item: Json) -> bool:
    return item["type"] == ITEM_REFERENCE or _is_empty_reasoning(item)


def _resolved(item: Json, found: Mapping[str, Json]) -> Json:
    stored = found.get(item["id"], item)
    refers = item["type"] == ITEM_REFERENCE or (_is_empty_reasoning(item) and stored["type"] == item["type"])
    return stored if refers else item


def _is_empty_reasoning(item: Json) -> bool:
    """Clients that keep only ids send reasoning without its text; the stored item has it."""
    texts = ("content", "summary", "encrypted_content")
    return item["type"] == "reasoning" and not any(item.get(name) for name in texts)
