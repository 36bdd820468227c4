"""The answers of `input_tokens` and `compact`, made from the responses that did the work."""

from __future__ import annotations

from app.protocol.errors import InvalidRequest, Unavailable
from app.protocol.requests.bodies.compaction import compaction_object
from app.protocol.status import Status
from app.protocol.types import Json


def input_tokens(response: Json) -> Json:
    """Returns openai's InputTokenCountResponse. Raises Unavailable and InvalidRequest."""
    _check_completed(response)
    return {"object": "response.input_tokens", "input_tokens": response["usage"]["input_tokens"]}


def compacted(response: Json) -> Json:
    """Returns openai's CompactedResponse. Raises Unavailable and InvalidRequest."""
    _check_completed(response)
    return compaction_object(response)


def _check_completed(response: Json) -> None:
    """Raises Unavailable if the response was cancelled (this server stops), and InvalidRequest if it was cut short."""
    status = Status(response["status"])
    if status is Status.CANCELLED:
        raise Unavailable("The work on this request was cancelled; send the request again.")
    if status is not Status.COMPLETED:
        message = "The model's context is too small for this input; send less."
        raise InvalidRequest(message, "input", "context_length_exceeded")
