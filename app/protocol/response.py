"""The response object, as GET, the lifecycle events and the terminal event show it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from app.protocol.status import Status
from app.protocol.text import bounded
from app.protocol.types import Json
from app.protocol.usage import Usage

_ECHOED = (
    "model",
    "instructions",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "reasoning",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "image",
    "user",
    "previous_response_id",
    "conversation",
)


def response_object(
    request: Mapping[str, Any],
    *,
    response_id: str,
    created_at: int,
    status: Status = Status.QUEUED,
    output: list[Json] | None = None,
    usage: Json | None = None,
    error: Json | None = None,
    incomplete_details: Json | None = None,
    finished_at: int | None = None,
    messages: Mapping[str, Any] = MappingProxyType({}),
) -> Json:
    """Returns all fields that Open Responses requires and the openai package reads; times are epoch seconds.

    `request` is the stored request; `messages` has `input_messages` and `output_messages` if the response shows them.
    Source: Open Responses' ResponseResource.
    """
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": finished_at if status is Status.COMPLETED else None,
        "status": status.value,
        "error": error,
        "incomplete_details": incomplete_details,
        # Another version may have accepted the request: its events have no field that it did not know.
        **{name: request[name] for name in _ECHOED if name in request},
        **({"omitted_tools": omitted} if (omitted := request.get("omitted_tools")) else {}),
        "output": output or [],
        "usage": usage,
        **messages,
    }


def brief_object(model: str, response_id: str, created_at: int) -> Json:
    """Returns a response object as small as it can be: for events that say nothing but its status."""
    text = {"format": {"type": "text"}}
    empty: Json = {"instructions": None, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "text": text}
    brief = {"model": model, **empty, "temperature": None, "top_p": None, "metadata": {}}
    return response_object(brief, response_id=response_id, created_at=created_at)


def usage_object(usage: Usage) -> Json:
    """Returns token counts as openai's ResponseUsage; if there were several turns, with vLLM's details of each."""
    turns = usage.turns
    input_details: Json = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0}
    output_details: Json = {"reasoning_tokens": usage.reasoning_tokens}
    if turns:
        input_details["input_tokens_per_turn"] = [turn.input_tokens for turn in turns]
        input_details["cached_tokens_per_turn"] = [turn.cached_tokens for turn in turns]
        output_details["tool_output_tokens"] = usage.tool_output_tokens
        output_details["output_tokens_per_turn"] = [turn.output_tokens for turn in turns]
        output_details["tool_output_tokens_per_turn"] = [turn.tool_output_tokens for turn in turns]
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": input_details,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": output_details,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


_CODES: Mapping[str, str] = MappingProxyType(
    {
        "previous_response_not_found": "invalid_prompt",
        "completion_window_expired": "server_error",
        "queue_timeout": "server_error",
        "run_timeout": "server_error",
    }
)
"""Our codes of a failed response that openai's ResponseError does not know, each with the one that it knows.

`context_length_exceeded` is none of its codes either, but OpenAI's API sends it, and Codex makes room when it reads it.
"""


def error_object(code: str, message: str) -> Json:
    """Returns the `error` of a failed response: with a code that openai's ResponseError knows, and ours as `reason`."""
    if code in _CODES:
        return {"code": _CODES[code], "message": bounded(message), "reason": code}
    return {"code": code, "message": bounded(message)}


def code_of(error: Mapping[str, Any]) -> str:
    """Returns the code for which `error_object` made this `error`."""
    return str(error.get("reason") or error["code"])
