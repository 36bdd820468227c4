"""The answer of `compact`, made from the response that did the work."""

from __future__ import annotations

from collections.abc import Callable

from app.protocol.errors import InvalidRequest, Unavailable
from app.protocol.failures import cancelled
from app.protocol.status import Status
from app.protocol.types import Json


def compacted(stops: Callable[[], bool], response: Json) -> Json:
    """Returns openai's CompactedResponse. Raises Unavailable and InvalidRequest.

    `stops`: whether this server stops, and so has cancelled what it still ran.
    """
    check_not_cancelled(stops, response)
    if Status(response["status"]) is not Status.COMPLETED:
        message = "The model's context is too small for this input; send less."
        raise InvalidRequest(message, "input", "context_length_exceeded")
    shown = ("created_at", "output", "usage")
    return {"id": response["id"], "object": "response.compaction", **{name: response[name] for name in shown}}


def check_not_cancelled(stops: Callable[[], bool], response: Json) -> None:
    """Raises Unavailable if a server that stops has cancelled the response, and InvalidRequest if somebody else has."""
    if Status(response["status"]) is Status.CANCELLED:
        if stops():
            raise Unavailable("The work on this request was cancelled; send the request again.")
        raise cancelled()
