"""The answer of `POST /v1/responses/compact`, made from a response whose output is a summary."""

from __future__ import annotations

from app.protocol.requests.compaction import compaction_object, summary_of
from app.protocol.types import Json
from app.responses.input_tokens import check_completed
from app.store.keys import SharedSealer
from app.store.sealing import SealedKind


async def compacted(response: Json, shared_sealer: SharedSealer) -> Json:
    """Returns openai's CompactedResponse with the summary sealed. Raises StoreUnavailable, Unavailable, ServerFault."""
    check_completed(response)
    sealer = await shared_sealer.get()
    return compaction_object(response, sealer.seal(SealedKind.COMPACTION, summary_of(response)))
