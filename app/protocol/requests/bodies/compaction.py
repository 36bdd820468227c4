"""`POST /v1/responses/compact`: a request for a compaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from app.protocol.item_types import COMPACTION_TRIGGER
from app.protocol.requests.base import RequestModel
from app.protocol.requests.bodies.consistency import check_has_input
from app.protocol.requests.bodies.create_response import ImageOptions, Input, ResponseId
from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.protocol.requests.bodies.text_config import Reasoning, TextConfig
from app.protocol.requests.fields import CacheRetention, CacheTtl, ClientMetadata, ModelName, ServiceTier, Text
from app.protocol.requests.tools.any_tool import Tools
from app.protocol.requests.validation import validate


class CompactOptions(RequestModel):
    """Hints, as those of a response."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: CacheTtl | None = None


class Compact(RequestModel, example={"model": "longhaul-demo", "input": [{"role": "user", "content": "Hello!"}]}):
    """The body of `POST /v1/responses/compact`."""

    model: ModelName
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_options: CompactOptions | None = None
    prompt_cache_retention: CacheRetention | None = None
    client_metadata: ClientMetadata | None = None
    service_tier: ServiceTier | None = None
    image: ImageOptions | None = None
    reasoning: Reasoning | None = None

    # About the answers of the conversation: a summary has no use for them.
    tools: Tools | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None


_KEPT = ("model", "instructions", "previous_response_id", "prompt_cache_key", "reasoning", "service_tier")


def compact_request(sent: Mapping[str, Any]) -> ResponseRequest:
    """Returns a request for a compaction of what the client sent. Raises InvalidRequest."""
    fields = validate(Compact, sent)
    if fields.previous_response_id is None:
        check_has_input(fields.input)
    items = sent.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    kept = {name: sent[name] for name in _KEPT if name in sent}
    return checked_request({**kept, "input": [*(items or ()), {"type": COMPACTION_TRIGGER}], "store": False})
