"""What `/docs` says of the routes: bodies, error answers and help texts."""

from __future__ import annotations

from pydantic import BaseModel

from app.api.docs import schemas
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


def body_docs(model: type[BaseModel], *, required: bool = True) -> Json:
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


CREATE_PARAMETERS: list[Json] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Names this request. Repeated with the same body, it is answered with the same response.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    }
]


def error_answers(*statuses: int) -> dict[int | str, Json]:
    """Returns the error answers of a route, for its documentation."""
    return {status: {"model": schemas.ErrorBody} for status in statuses}
