"""What a response is generated from: the items of its context and its own input, unsealed, and its secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from app.protocol.requests.unsealing import since_compaction, unsealed
from app.protocol.types import Json
from app.store.context import NO_LIMIT, ContextGone, ContextTooLarge, context_items, restore_calls
from app.store.database import Database, retry_until_available
from app.store.keys import SharedSealer
from app.store.rows import ResponseRow
from app.store.sealing import BadSeal, SealedKind, unseal_headers
from workers.engine.base import EngineError


class ContextLost(EngineError):
    """A response that this one continues was deleted."""

    def __init__(self) -> None:
        super().__init__("a response that this one continues was deleted")


class ContextTooLong(EngineError):
    """A response that this one continues, or its conversation, is larger than a worker may read."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"the responses or the conversation that it continues have more than {most_bytes} bytes")


class UnreadableRequest(EngineError):
    """The stored request is damaged."""

    def __init__(self) -> None:
        super().__init__("the stored request cannot be read")


class UnreadableItem(EngineError):
    """The API could open this item; since then the deployment lost its key."""

    def __init__(self) -> None:
        super().__init__("an item's 'encrypted_content' cannot be decrypted: the deployment's key was lost")


class UnreadableHeaders(EngineError):
    """The API sealed these headers; since then the deployment lost its key."""

    def __init__(self) -> None:
        super().__init__("the 'headers' of a tool cannot be decrypted: the deployment's key was lost")


class Inputs:
    """Reads what a response is generated from: the same at every attempt. Waits for Postgres."""

    def __init__(self, db: Database, most_bytes: int = NO_LIMIT) -> None:
        """`most_bytes` is the most that is read of what a response continues."""
        self._db = db
        self._most_bytes = most_bytes
        self._sealer = SharedSealer(db)

    async def items(self, row: ResponseRow) -> list[Json]:
        """The items of the context since its newest compaction, then those of the response's own input.

        Raises ContextLost, ContextTooLong or UnreadableItem.
        """
        try:
            before = await retry_until_available(lambda: context_items(self._db, row, self._most_bytes))
            items = since_compaction(before, row.request["input"])
            restored = await retry_until_available(
                lambda: restore_calls(self._db, row.project, items, self._most_bytes)
            )
        except ContextGone:
            raise ContextLost from None
        except ContextTooLarge:
            raise ContextTooLong(self._most_bytes) from None
        return await self.unseal(restored)

    async def unseal(self, items: list[Json]) -> list[Json]:
        """The items with their encrypted content in plain text. Raises UnreadableItem."""
        sealer = await retry_until_available(self._sealer.get)
        try:
            return unsealed(
                items, partial(sealer.unseal, SealedKind.REASONING), partial(sealer.unseal, SealedKind.COMPACTION)
            )
        except BadSeal:
            raise UnreadableItem from None

    async def secrets(self, request: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        """The HTTP headers that the request brought for MCP servers, by server label. Raises UnreadableHeaders."""
        if not (sealed := request.get("secrets")):
            return {}
        sealer = await retry_until_available(self._sealer.get)
        try:
            return {label: unseal_headers(sealer, token) for label, token in sealed.items()}
        except BadSeal:
            raise UnreadableHeaders from None

    async def summary_seal(self) -> Callable[[str], str]:
        """Seals the summary of a compaction."""
        return partial((await retry_until_available(self._sealer.get)).seal, SealedKind.COMPACTION)

    async def reasoning_seal(self) -> Callable[[str], str]:
        """Seals reasoning text, for requests that want it encrypted."""
        return partial((await retry_until_available(self._sealer.get)).seal, SealedKind.REASONING)
