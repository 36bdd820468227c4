"""Stored requests for tests that start below the HTTP layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson

from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.protocol.requests.strict_json import decode_object


def parse_request(body: bytes) -> ResponseRequest:
    """Returns the request in `body`, as the API reads it. Raises InvalidRequest."""
    return checked_request(decode_object(body))


@cache
def _plain() -> bytes:
    """A plain background request as it is stored, but for its input."""
    sent = {"model": "scripted", "input": "x", "temperature": 0.0, "stream": True, "background": True}
    return orjson.dumps(checked_request(sent).stored("resp_1", {}))


def stored_request(text: str = "Hello!", **fields: Any) -> dict[str, Any]:
    """Returns a stored request with the defaults of a plain background request. `input` may be a text."""
    if isinstance(fields.get("input"), str):
        fields["input"] = [message(fields["input"])]
    return {**orjson.loads(_plain()), "input": [message(text)], **fields}


def message(text: str, role: str = "user") -> dict[str, Any]:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    return {"type": "message", "id": "msg_in_0", "status": "completed", "role": role, "content": [part]}


def reasoning(*texts: str, summary: str = "") -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    summaries = [{"type": "summary_text", "text": summary}] if summary else []
    return {"type": "reasoning", "id": "rs_1", "status": "completed", "content": content, "summary": summaries}


def call(name: str = "f", arguments: str = "{}", call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": arguments}


def output(text: Any = "18", call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "function_call_output", "id": "fco_1", "call_id": call_id, "output": text}
