"""What `/docs` says of the routes: bodies, parameters, error answers and help texts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from app.api import schemas
from app.protocol.include import SUPPORTED_INCLUDES
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.types import Json

_EVENTS_EXAMPLE = (
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":6,'
    '"item_id":"msg_0193_0","output_index":0,"content_index":0,"delta":"Hello","logprobs":[]}\n\ndata: [DONE]\n\n'
)

_EVENT: Json = {
    "type": "object",
    "description": "One Server-Sent Event. Its data is JSON whose type equals the event's; the last one is [DONE].",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
    "additionalProperties": False,
}

RESPONSE_OR_EVENTS: Json = {
    "model": schemas.Response,
    "description": "The response object; with `stream` its events as Server-Sent Events.",
    "content": {"text/event-stream": {"schema": _EVENT, "example": _EVENTS_EXAMPLE}},
}

CREATE_BODY: Json = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"$ref": f"#/components/schemas/{CreateResponse.__name__}"},
            "examples": {
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
            },
        }
    },
}


def body_of(model: type[BaseModel], *, required: bool = True) -> Json:
    """Returns a request body for a route's documentation; `openapi.py` adds the schema of the model."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"required": required, "content": {"application/json": {"schema": schema}}}


CREATE_HELP = """Four forms, by `background` and `stream`:

* neither: the answer is the finished response; a client that disconnects cancels it;
* `stream`: the answer is its events as they come; a client that disconnects cancels it;
* `background`: the answer is the `queued` response, at once; it runs without any client;
* both: as `background`, and its events can be read from any sequence number on, any number of times.
"""

COUNT_HELP = """Returns how many tokens the prompt has. A worker of the model counts them before other work."""

COMPACT_HELP = """The model writes a summary, and the answer holds it sealed in one item.

Send that item as the first of `input`."""

READ_HELP = """While it is in progress, the response has its output so far.

With `stream=true` the answer is the events after number `starting_after`, up to the end of the response. The response
must have been created with `stream` and `background`."""


def _query(name: str, description: str, **schema: Any) -> Json:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


_INCLUDE_VALUES = {"type": "string", "enum": list(SUPPORTED_INCLUDES)}
INCLUDE_PARAMETER = _query(
    "include", "Parts that items always have, or that were included at creation.", type="array", items=_INCLUDE_VALUES
)
INCLUDE_PARAMETERS: list[Json] = [INCLUDE_PARAMETER]

READ_PARAMETERS: list[Json] = [
    INCLUDE_PARAMETER,
    _query("include_obfuscation", "With `stream`: pad deltas to hide their length.", type="boolean", default=False),
    _query("stream", "Read events instead of the object.", type="boolean", default=False),
    _query("starting_after", "With `stream`: events after this sequence number only.", type="integer", minimum=0),
]


CLIENT_VERSION = _query(
    "client_version", "Codex sends it: the list has `models`, too, as Codex reads them.", type="string"
)

CREATE_PARAMETERS: list[Json] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Names this request. Repeated with the same body, it is answered with the same response.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    }
]

LIST_PARAMETERS: list[Json] = [
    INCLUDE_PARAMETER,
    _query("after", "Items after the one with this id.", type="string", minLength=1),
    _query("limit", "The largest number of items.", type="integer", minimum=1, maximum=100, default=20),
    _query("order", "The newest first, or the oldest.", type="string", enum=["asc", "desc"], default="desc"),
]


CURSOR_PARAMETERS: list[Json] = [
    _query("after", "Entries after the one with this id only.", type="string"),
    _query("limit", "How many entries.", type="integer", minimum=1, maximum=100, default=20),
]
INCLUDE_ARCHIVED = _query("include_archived", "Archived projects, too.", type="boolean", default=False)
ORDER = _query("order", "By the time of creation.", type="string", enum=["asc", "desc"], default="asc")
PROJECT_ACCESS = _query(
    "owner_project_access",
    "Keys of a project that is archived are `inactive`.",
    type="string",
    enum=["any", "active", "inactive"],
    default="any",
)


def _repeated(name: str, description: str) -> Json:
    return _query(name, f"{description} At most 100.", type="array", items={"type": "string"})


BEFORE = _query("before", "Entries before the one with this id only.", type="string")
AUDIT_PARAMETERS: list[Json] = [
    BEFORE,
    _repeated("event_types", "Entries of these types only."),
    _repeated("actor_ids", "What these keys did only; `command-line` stands for commands."),
    _repeated("project_ids", "Entries of these projects only."),
    _repeated("resource_ids", "Entries about these ids only."),
    *(
        _query(f"effective_at[{bound}]", "Epoch seconds.", type="integer", minimum=0)
        for bound in ("gt", "gte", "lt", "lte")
    ),
]


USAGE_PARAMETERS: list[Json] = [
    {
        "name": "start_time",
        "in": "query",
        "required": True,
        "description": "Epoch seconds.",
        "schema": {"type": "integer", "minimum": 0},
    },
    _query("end_time", "Epoch seconds; by default now.", type="integer", minimum=0),
    _query("bucket_width", "The time of one bucket.", type="string", enum=["1d", "1h", "1m"], default="1d"),
    _query("limit", "How many buckets.", type="integer", minimum=1, maximum=1440),
    _query("page", "`next_page` of the page before.", type="string"),
    _query("batch", "Usage of batches only, or of all else.", type="boolean"),
    _repeated("group_by", "What usage is told apart by."),
    _repeated("project_ids", "Usage of these projects only."),
    _repeated("user_ids", "Usage of these service accounts only."),
    _repeated("api_key_ids", "Usage of these keys only."),
    _repeated("models", "Usage of these models only."),
]


def error_answers(*statuses: int) -> dict[int | str, Json]:
    """Returns the error answers of a route, for its documentation."""
    return {status: {"model": schemas.ErrorBody} for status in statuses}
