"""Items that a request refers to by id, and items that this server sealed for its client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import orjson

from app.bounds import Bound
from app.files.attachments import Attachments
from app.heavy import off_loop
from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.item_types import ITEM_REFERENCE
from app.protocol.text import shortened
from app.protocol.types import Json
from app.sizes import item_count
from app.store.context.items import find_items, measure_items, searched_bytes
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.sealing import BadSeal, SealedKind, Sealer
from config.settings import Settings

MAX_REFERENCES = 1000
"""Different items that one request may refer to: Postgres searches a response for each."""


@dataclass(frozen=True, slots=True)
class ResolvedItems:
    """The items of a request, and what references and files brought in: its bytes, and its items with their parts."""

    items: list[Json]
    bytes: int = 0
    count: int = 0


class ReferenceResolver:
    """Replaces references to stored items by the items themselves."""

    def __init__(self, db: Database, sealer: SharedSealer, attachments: Attachments, settings: Settings) -> None:
        self._db = db
        self._max_resolved = settings.max_body_bytes
        """Bytes of all items of a request together; an item counts as often as it is referred to."""
        self._max_searched = settings.max_context_bytes
        """Bytes of the inputs and outputs in which they are."""
        self._brought = Bound("references", self._max_resolved, unit="bytes of ", shares=settings.asks_for_keys)
        self._sealer = sealer
        self._attachments = attachments

    async def resolve(
        self,
        project: str,
        items: Sequence[Json],
        held: ExitStack,
        *,
        size: int,
        count: int,
        param: str = "input",
        spares: bool = False,
    ) -> ResolvedItems:
        """Returns the items with stored ones in place of references and of reasoning that came without its text, and
        with what their files say; `spares` as of `Attachments.attach`.

        `size` and `count` are the items' bytes, and how many items and parts they are. What references bring in waits
        for room before it is read, and counts until the end of `held`. `param` is the request's field that holds the
        items. Raises NotFound for an unknown reference, InvalidRequest for encrypted content that this server did not
        make and for references that bring in too much, and StoreUnavailable.
        """
        await self._check_seals(project, items, param, size, count)
        attached, attached_bytes = await self._attachments.attach(project, items, held, param, spares=spares)
        resolved = await self._resolved(project, attached, held, param)
        return replace(resolved, bytes=resolved.bytes + attached_bytes)

    async def _resolved(self, project: str, items: Sequence[Json], held: ExitStack, param: str) -> ResolvedItems:
        references = [(index, item["id"]) for index, item in enumerate(items) if _refers(item)]
        if not references:
            return ResolvedItems(list(items))
        found, brought_bytes = await self._find(project, references, held, param)
        for index, item in enumerate(items):
            if item["type"] == ITEM_REFERENCE and item["id"] not in found:
                message = f"Item with id '{shortened(item['id'])}' not found."
                raise NotFound(message, f"{param}[{index}].id", "item_not_found")
        brought = (found[item_id] for _, item_id in references if item_id in found)
        return ResolvedItems([_resolved(item, found) for item in items], brought_bytes, item_count(brought))

    async def _find(
        self, project: str, references: Sequence[tuple[int, str]], held: ExitStack, param: str
    ) -> tuple[dict[str, Json], int]:
        """Returns the items by id, and the bytes of all references to them.

        Measures the items before it reads them: a short request must not become a large row.
        """
        ids = dict.fromkeys(item_id for _, item_id in references)
        if len(ids) > MAX_REFERENCES:
            first_beyond = next(index for index, item_id in references if item_id == list(ids)[MAX_REFERENCES])
            message = f"expected references to at most {MAX_REFERENCES} different items, but got {len(ids)} instead."
            raise _too_large(f"{param}[{first_beyond}]", message)
        searched = await searched_bytes(self._db, project, ids)
        if searched > self._max_searched:
            message = f"expected references to responses of at most {self._max_searched} bytes, but got {searched}."
            raise _too_large(f"{param}[{references[0][0]}]", message)
        sizes = await measure_items(self._db, project, ids, searched)
        total = self._check_sizes(references, sizes.items, param)
        held.enter_context(await self._brought.wait(project, max(total, sizes.read)))
        found = await find_items(self._db, project, ids, sizes)
        if unknown := found.keys() - sizes.items.keys():
            read = {item_id: len(orjson.dumps(found[item_id])) for item_id in unknown}
            total = self._check_sizes(references, {**sizes.items, **read}, param)
        return found, total

    def _check_sizes(self, references: Sequence[tuple[int, str]], sizes: Mapping[str, int], param: str) -> int:
        """Returns the bytes of all references."""
        total, limit = 0, self._max_resolved
        for index, item_id in references:
            total += sizes.get(item_id, 0)
            if total > limit:
                message = f"the items that are referred to up to here have {total} bytes; at most {limit} are accepted."
                raise _too_large(f"{param}[{index}]", message)
        return total

    async def _check_seals(self, project: str, items: Sequence[Json], param: str, size: int, count: int) -> None:
        sealed = [(index, item) for index, item in enumerate(items) if item.get("encrypted_content")]
        if sealed:
            sealer = await self._sealer.get(project)
            await off_loop(partial(_check_seals, sealer, sealed, param), size, count)


def _check_seals(sealer: Sealer, sealed: Sequence[tuple[int, Json]], param: str) -> None:
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
