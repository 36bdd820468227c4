"""Errors as Anthropic's API has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from app.messages.names import dotted
from app.protocol.errors import ApiError, Unavailable
from app.protocol.types import Json
from app.translation.names import renamed_error

OVERLOADED = 529

_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        504: "timeout_error",
        OVERLOADED: "overloaded_error",
    }
)
"""`error.type` by status; every other error is the client's."""

TOO_LONG = "prompt is too long: "
"""Begins the message of a prompt that does not fit: Claude Code looks for these words, and then makes room."""
_COUNTS = re.compile(r"the input has (\d+) tokens, .* holds (\d+)")


def message_status(error: ApiError) -> int:
    """Returns the status that an error has in Anthropic's API, which says 529 where others say 503."""
    return OVERLOADED if isinstance(error, Unavailable) else error.status


def error_body(error: ApiError, request_id: str | None) -> Json:
    """Returns the body of an answer, or the data of an event, about the error. It names fields in the message alone."""
    said = error.error if error.error.param is None else renamed_error(error.error, dotted(error.error.param))
    message = said.message
    if said.code == "context_length_exceeded":  # Of these two numbers Claude Code makes how much goes.
        counts = _COUNTS.search(message)
        message = TOO_LONG + (message if counts is None else f"{counts[1]} tokens > {counts[2]} maximum")
    kind = _TYPES.get(message_status(error), "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
