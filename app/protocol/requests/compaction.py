"""`POST /v1/responses/compact`: a request for a summary, and the summary as an item that stands for what it sums up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocol.errors import InvalidRequest
from app.protocol.item_types import COMPACTION
from app.protocol.requests.base import RequestModel
from app.protocol.requests.create_response import ImageOptions, Input, ResponseId
from app.protocol.requests.fields import SupportedValues, Text
from app.protocol.requests.request import ResponseRequest, checked_request
from app.protocol.requests.validation import validate
from app.protocol.types import Json

SUMMARISE = (
    "Write a summary of the conversation so far, for a model that will go on with it and will see nothing else of it. "
    "Keep every fact, name, number, decision, open question and wish of the user, and what tools returned. "
    "Write only the summary."
)
"""The last message of the prompt: the model answers it with a summary."""


class CompactOptions(RequestModel):
    mode: Annotated[str | None, SupportedValues(("implicit",))] = None
    ttl: Annotated[str | None, SupportedValues()] = None


class Compact(RequestModel):
    """The body of `POST /v1/responses/compact`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "longhaul-demo", "input": [{"role": "user", "content": "Hello!"}]}]}
    )

    model: Annotated[str, Field(min_length=1)]
    input: Input | None = None
    instructions: str | None = None
    previous_response_id: ResponseId | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_options: CompactOptions | None = None
    prompt_cache_retention: Annotated[str | None, SupportedValues(("in_memory",))] = None
    service_tier: Literal["auto", "default", "flex", "priority", "fast"] | None = None
    image: ImageOptions | None = None


_KEPT = ("model", "instructions", "previous_response_id", "prompt_cache_key", "service_tier")


def compact_request(sent: Mapping[str, Any]) -> ResponseRequest:
    """Returns a request for a summary of what the client sent. Raises InvalidRequest."""
    fields = validate(Compact, sent)
    if fields.input is None and fields.previous_response_id is None:
        raise InvalidRequest("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    items = sent.get("input") or []
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    kept = {name: sent[name] for name in _KEPT if name in sent}
    body = {**kept, "input": [*items, {"role": "user", "content": SUMMARISE}], "store": False}
    return checked_request(body)


def compaction_object(response: Mapping[str, Any], sealed: str) -> Json:
    """Returns openai's CompactedResponse: its one item stands for the conversation from now on."""
    suffix = response["id"].split("_", 1)[-1]
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [{"type": COMPACTION, "id": f"cmp_{suffix}", "status": "completed", "encrypted_content": sealed}],
        "usage": response["usage"],
    }


def summary_of(response: Mapping[str, Any]) -> str:
    """Returns the text of a response."""
    parts = (part for item in response["output"] if item["type"] == "message" for part in item["content"])
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
