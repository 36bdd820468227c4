"""What `/docs` says of the routes: examples, events, headers and error answers."""

from __future__ import annotations

from pydantic import BaseModel

from app.api.docs import schemas
from app.protocol.requests.bodies.files import UPLOADED
from app.protocol.types import Json


def _event(description: str, *more: str) -> Json:
    """The schema of one event. Each has data and may have a type; `more` are the other fields that each has."""
    return {
        "type": "object",
        "description": description,
        "properties": {name: {"type": "string"} for name in ("event", "data", *more)},
        "required": ["data", *more],
        "additionalProperties": False,
    }


def _or_events(model: type[BaseModel], description: str, event: str, example: str, **more: Json) -> Json:
    """An answer that is one object or, with `stream`, events."""
    content = {"text/event-stream": {"schema": _event(event), "example": example}}
    return {"model": model, "description": description, "content": content, **more}


_TYPED = "One Server-Sent Event. Its data is JSON whose type equals the event's"
RESPONSE_OR_EVENTS = _or_events(
    schemas.Response,
    "The response object; with `stream` its events as Server-Sent Events.",
    f"{_TYPED}; the last one is [DONE].",
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":6,'
    '"item_id":"msg_0193_0","output_index":0,"content_index":0,"delta":"Hello","logprobs":[]}\n\ndata: [DONE]\n\n',
)
_ID: Json = {
    "x-longhaul-response": {
        "description": "The id of the response, which is kept with `store` true.",
        "schema": {"type": "string"},
    }
}
COMPLETION_OR_CHUNKS = _or_events(
    schemas.ChatCompletion,
    "The completion; with `stream` its chat chunks as Server-Sent Events.",
    "One Server-Sent Event, without a type. Its data is a chat chunk; the last is [DONE].",
    'data: {"id":"chatcmpl-0193","object":"chat.completion.chunk","created":1764192000,"model":"longhaul-demo",'
    '"choices":[{"index":0,"delta":{"content":"Hello"},"logprobs":null,"finish_reason":null}]}\n\ndata: [DONE]\n\n',
    headers=_ID,
)
MESSAGE_OR_EVENTS = _or_events(
    schemas.Message,
    "The message; with `stream` its events as Server-Sent Events, `ping` among them.",
    f"{_TYPED}.",
    'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    '"delta":{"type":"text_delta","text":"Hello"}}\n\n',
    headers=_ID,
)

_BYTES: Json = {"type": "string", "format": "binary"}


_FORM: dict[str, Json] = {
    "file": _BYTES,
    "purpose": {"type": "string", "enum": [*UPLOADED]},
    "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
    "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
}
_FORM_SCHEMA: Json = {
    "type": "object", "properties": _FORM, "required": ["file", "purpose"], "additionalProperties": False,
}  # fmt: skip
FILE_FORM: Json = {"required": True, "content": {"multipart/form-data": {"schema": _FORM_SCHEMA}}}
FILE_CONTENT: dict[int | str, Json] = {
    200: {"description": "The bytes.", "content": {"application/octet-stream": {"schema": _BYTES}}},
    206: {"description": "The range of them.", "content": {"application/octet-stream": {"schema": _BYTES}}},
    304: {"description": "`If-None-Match` names the file's `ETag`."},
}

RESULTS: dict[int | str, Json] = {
    200: {
        "description": "Lines of JSON: each a result with its `number`, the last one with the `batch`.",
        "content": {"application/x-ndjson": {"schema": {"type": "string", "description": "A line of JSON each."}}},
    },
}

EVENTS: dict[int | str, Json] = {
    200: {
        "model": schemas.EventList,
        "description": "A page; with `stream` Server-Sent Events without an end, each with the event's id as `id`.",
        "content": {"text/event-stream": {"schema": _event(f"{_TYPED}, as a page has it.", "id")}},
    },
}

CREATE_EXAMPLES: Json = {
    "background": {
        "summary": "In the background: poll it, or stream it and resume",
        "value": {"model": "longhaul-demo", "input": "Tell me a story.", "background": True},
    },
    "stream": {
        "summary": "A stream",
        "value": {"model": "longhaul-demo", "input": "Hello!", "stream": True},
    },
    "messages": {
        "summary": "Messages and sampling parameters",
        "value": {
            "model": "longhaul-demo",
            "instructions": "Be brief.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}],
            "temperature": 0.2,
            "max_output_tokens": 64,
            "metadata": {"job": "nightly"},
        },
    },
}

CREATE_PARAMETERS: list[Json] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Names this request. Repeated with the same body, it gets the same response or batch.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    }
]


def error_answers(*statuses: int) -> dict[int | str, Json]:
    """Returns the error answers of a route, for its documentation."""
    return {status: {"model": schemas.ErrorBody} for status in statuses}
