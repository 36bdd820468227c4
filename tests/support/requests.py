"""Stored requests for tests that start below the HTTP layer."""

from __future__ import annotations

from typing import Any

from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.protocol.requests.strict_json import decode_object


def parse_request(body: bytes) -> ResponseRequest:
    """Returns the request in `body`, as the API reads it. Raises InvalidRequest."""
    return checked_request(decode_object(body))


def stored_request(text: str = "Hello!", **fields: Any) -> dict[str, Any]:
    """Returns a stored request with the defaults of a plain background request. `input` may be a text."""
    if isinstance(fields.get("input"), str):
        fields["input"] = [message(fields["input"])]
    return {
        "model": "scripted",
        "input": [message(text)],
        "instructions": None,
        "temperature": 0.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_output_tokens": None,
        "conversation": None,
        "include": [],
        "metadata": {},
        "store": True,
        "stream": True,
        "background": True,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_logprobs": 0,
        "reasoning": None,
        "max_tool_calls": None,
        "service_tier": "default",
        "safety_identifier": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "prompt_cache_options": None,
        "image": None,
        "user": None,
        "previous_response_id": None,
        "extra": {},
        "previous_input_messages": None,
        "enable_response_messages": False,
        "secrets": {},
        "compaction": None,
        "summary_tokens": None,
        "task": None,
        **fields,
    }


def message(text: str, role: str = "user") -> dict[str, Any]:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    return {"type": "message", "id": "msg_in_0", "status": "completed", "role": role, "content": [part]}
