"""The answer of `POST /v1/responses/compact`, made from a response whose output is a compaction."""

from __future__ import annotations

from app.protocol.requests.bodies.compaction import compaction_object
from app.protocol.types import Json
from app.responses.read.input_tokens import check_completed


async def compacted(response: Json) -> Json:
    """Returns openai's CompactedResponse. Raises what `check_completed` raises."""
    check_completed(response)
    return compaction_object(response)
