"""The completion that a response becomes: openai's ChatCompletion, with vLLM's `reasoning_content`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.protocol.events.machine import MALFORMED_CALL, MAX_TOKENS
from app.protocol.item_types import MESSAGE, REASONING
from app.protocol.types import Json

BETWEEN_ITEMS = "\n"
"""The separator between the texts of two messages, or of two items of reasoning, as in vLLM's answers."""

_REASONS = {MAX_TOKENS: "length", "content_filter": "content_filter"}


def completion(response: Mapping[str, Any], *, include_reasoning: bool = True) -> Json:
    """Returns the completion of a response that is completed or incomplete."""
    output = response["output"]
    tokens = [token for part in _parts(output, MESSAGE) for token in part.get("logprobs", ())]
    choice = {
        "index": 0,
        "message": _message(output, include_reasoning),
        "logprobs": logprobs(tokens),
        "finish_reason": finish_reason(response),
    }
    return {**head(response, "chat.completion"), "choices": [choice], "usage": usage(response["usage"])}


def head(response: Mapping[str, Any], kind: str) -> Json:
    """Returns what a completion and its chat chunks begin with."""
    return {
        "id": f"chatcmpl-{response['id'].partition('_')[2]}",
        "object": kind,
        "created": response["created_at"],
        "model": response["model"],
        "service_tier": response["service_tier"],
        "system_fingerprint": None,
        **({"omitted_tools": response["omitted_tools"]} if response.get("omitted_tools") else {}),
    }


def finish_reason(response: Mapping[str, Any]) -> str:
    """Why the model ended. A call that is no valid JSON is a call, as OpenAI's API has it: the client checks it."""
    details = response["incomplete_details"]
    reason = None if details is None else details["reason"]
    if reason in _REASONS:
        return _REASONS[reason]
    called = any(item["type"] in CALLS for item in response["output"])
    return "tool_calls" if called or reason == MALFORMED_CALL else "stop"


def usage(used: Mapping[str, Any]) -> Json:
    """Returns openai's CompletionUsage of a response's usage."""
    return {
        "prompt_tokens": used["input_tokens"],
        "completion_tokens": used["output_tokens"],
        "total_tokens": used["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": used["input_tokens_details"]["cached_tokens"]},
        "completion_tokens_details": {"reasoning_tokens": used["output_tokens_details"]["reasoning_tokens"]},
    }


def logprobs(tokens: list[Json]) -> Json | None:
    return {"content": tokens, "refusal": None} if tokens else None


CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
"""What each item that is a call is in chat, and the field that the model writes."""


def call(item: Json) -> Json:
    """Returns the call as a completion has it; a chat chunk's has an `index` besides."""
    kind, field = CALLS[item["type"]]
    return {"id": item["call_id"], "type": kind, kind: {"name": item["name"], field: item[field]}}


def _message(output: list[Json], include_reasoning: bool) -> Json:
    message: Json = {"role": "assistant", "content": _text(output, MESSAGE, "text")}
    message["refusal"] = _text(output, MESSAGE, "refusal")
    if include_reasoning and (thoughts := _text(output, REASONING, "text")) is not None:
        message["reasoning_content"] = thoughts
    if calls := [call(item) for item in output if item["type"] in CALLS]:
        message["tool_calls"] = calls
    return message


def _parts(output: Iterable[Json], kind: str) -> Iterable[Json]:
    return (part for item in output if item["type"] == kind for part in item["content"])


def _text(output: Iterable[Json], kind: str, field: str) -> str | None:
    """Returns the text of all items of this kind; None: they have none."""
    found = [[part[field] for part in _parts([item], kind) if field in part] for item in output]
    texts = ["".join(texts) for texts in found if texts]
    return BETWEEN_ITEMS.join(filter(None, texts)) if texts else None
