"""What goes over a WebSocket: JSON text frames, in the forms of openai's ResponsesClientEvent and -ServerEvent.

Events of a response are those of its SSE stream, with the `stream_id` of the request if it had one. An error is nested
(`{"type": "error", "status": 400, "error": {...}}`); over SSE it is flat.
Source: openai 3.52.0 (types/responses/responses_{client,server}_event.py) and OpenAI's guide "WebSocket mode".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from app.api.errors import error_headers
from app.protocol.errors import ApiError, InvalidRequest
from app.protocol.events import frames
from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.protocol.requests.strict_json import decode_object
from app.protocol.requests.tools.omitted import omit_tools
from app.protocol.tasks import COUNT
from app.protocol.text import shortened
from app.protocol.types import Json

CREATE = "response.create"
"""All that a client may send."""

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """One frame of a client; `fields` are those of its request, not checked yet."""

    stream_id: str | None
    fields: Json


def read_event(frame: bytes, *, checked: bool = True) -> ClientEvent:
    """Returns the event in a text frame; unless `checked`, only to look at it. Raises InvalidRequest."""
    fields = decode_object(frame, checked=checked)
    _check_type(fields.pop("type", None))
    return ClientEvent(_take_stream_id(fields), fields)


def _check_type(sent: Any) -> None:
    if sent is None:
        raise InvalidRequest("Missing required parameter: 'type'.", "type", "missing_required_parameter")
    if sent != CREATE:
        shown = shortened(sent) if isinstance(sent, str) else type(sent).__name__
        message = f"Invalid value for 'type': '{shown}'. Supported values are: '{CREATE}'."
        raise InvalidRequest(message, "type", "invalid_value")


def _take_stream_id(fields: Json) -> str | None:
    """Removes the stream's id from the fields and returns it."""
    if "stream_id" not in fields:
        return None
    stream_id = fields.pop("stream_id")
    if not isinstance(stream_id, str) or not _STREAM_ID.fullmatch(stream_id):
        message = "Invalid 'stream_id': expected 1 to 256 letters, digits, underscores, hyphens and periods."
        raise InvalidRequest(message, "stream_id", "invalid_stream_id")
    return stream_id


def request_of(fields: Json, omitted: Collection[str] = ()) -> ResponseRequest:
    """Returns the request in a `response.create`, which always streams in the foreground, without `omitted` tools.

    With `generate` false it only prepares a prompt that later requests may continue. Raises InvalidRequest.
    """
    body = dict(fields)
    generate = body.pop("generate", None)
    if generate is not None and not isinstance(generate, bool):
        raise InvalidRequest("Invalid type for 'generate': expected a boolean.", "generate", "invalid_type")
    if body.get("background") not in (None, False):
        message = "'background' must be false on a WebSocket; send 'background': true to 'POST /v1/responses'."
        raise InvalidRequest(message, "background", "unsupported_parameter")
    if body.setdefault("stream", True) not in (None, True):
        raise InvalidRequest("'stream' must be true on a WebSocket.", "stream", "unsupported_parameter")
    body["stream"] = True
    return checked_request(omit_tools(body, omitted), COUNT if generate is False else None)


def error_event(error: ApiError, stream_id: str | None) -> str:
    """Returns the frame of a request that is refused.

    It has the headers of the HTTP answer, if they say how to wait: openai's clients read those of `error`, and Codex
    those beside it.
    """
    headers = error_headers(error)
    more = {"headers": headers} if headers else {}
    said = {**error.error.body()["error"], **more}
    return _text({"type": "error", "status": error.status, "error": said, **more}, stream_id)


def server_events(encoded: bytes, stream_id: str | None) -> Iterator[str]:
    """Yields the events in a chunk's SSE frames as text frames of a stream."""
    for frame in frames.split(encoded):
        head, data = frame.removesuffix(b"\n\n").split(b"\ndata: ", 1)
        if head == b"event: error":
            yield _nested_error(orjson.loads(data), stream_id)
            continue
        # Parsing and encoding again would cost more than this cut into the ready JSON.
        yield data.decode() if stream_id is None else f'{data[:-1].decode()},"stream_id":"{stream_id}"}}'


def _nested_error(event: Json, stream_id: str | None) -> str:
    error = {"type": "server_error", **{name: event.get(name) for name in ("code", "message", "param")}}
    return _text({"type": "error", "sequence_number": event["sequence_number"], "error": error}, stream_id)


def _text(event: Json, stream_id: str | None = None) -> str:
    return orjson.dumps(event if stream_id is None else {**event, "stream_id": stream_id}).decode()
