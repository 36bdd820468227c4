"""Requests that become requests for a response: counting a prompt's tokens, and compacting a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocol.errors import InvalidRequest
from app.protocol.requests.base import RequestModel
from app.protocol.requests.fields import SupportedValues, Text
from app.protocol.requests.request import (
    COUNT,
    CreateResponse,
    ImageOptions,
    Input,
    Prompt,
    ResponseId,
    ResponseRequest,
    checked,
)
from app.protocol.requests.unsealing import COMPACTION
from app.protocol.requests.validation import validate
from app.protocol.types import Json

SUMMARISE = (
    "Write a summary of the conversation so far, for a model that will go on with it and will see nothing else of it. "
    "Keep every fact, name, number, decision, open question and wish of the user, and what tools returned. "
    "Write only the summary."
)
"""What a model is asked for instead of an answer, where a conversation is to be compacted."""


class CountTokens(Prompt):
    """The body of `POST /v1/responses/input_tokens`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "longhaul-demo", "input": "Hello!"}]})

    # Needed only where several models are served.
    model: Annotated[str, Field(min_length=1)] | None = None  # type: ignore[assignment]
    personality: Annotated[str | None, SupportedValues()] = None


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


_COMPACTED = ("model", "instructions", "previous_response_id", "prompt_cache_key", "service_tier")


def count_request(sent: Mapping[str, Any], only_model: str | None) -> ResponseRequest:
    """A request that generates nothing. `only_model` stands in where none is named. Raises InvalidRequest."""
    named = validate(CountTokens, sent).model or only_model
    if named is None:
        raise InvalidRequest("Missing required parameter: 'model'.", "model", "missing_required_parameter")
    body = {**sent, "model": named, "store": False}
    body.pop("personality", None)
    return ResponseRequest(checked(CreateResponse, body), body, COUNT)


def compact_request(sent: Mapping[str, Any]) -> ResponseRequest:
    """A request for a summary of what was sent. Raises InvalidRequest."""
    fields = validate(Compact, sent)
    if fields.input is None and fields.previous_response_id is None:
        raise InvalidRequest("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    items = sent.get("input") or []
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    kept = {name: sent[name] for name in _COMPACTED if name in sent}
    body = {**kept, "input": [*items, {"role": "user", "content": SUMMARISE}], "store": False}
    return ResponseRequest(checked(CreateResponse, body), body)


def compaction(response: Mapping[str, Any], sealed: str) -> Json:
    """openai's CompactedResponse: what stands in for the conversation from now on."""
    suffix = response["id"].split("_", 1)[-1]
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [{"type": COMPACTION, "id": f"cmp_{suffix}", "status": "completed", "encrypted_content": sealed}],
        "usage": response["usage"],
    }


def summary_of(response: Mapping[str, Any]) -> str:
    """The text that a response says."""
    parts = (part for item in response["output"] if item["type"] == "message" for part in item["content"])
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
