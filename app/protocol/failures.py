"""The error for a waiting client whose response did not end with an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.protocol.errors import BAD_PROMPT_CODES, FAILURES, ApiError, InvalidRequest, ServerFault
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.response import code_of
from app.protocol.status import Status

_FIELDS = CreateResponse.model_fields.keys() - {"prompt"}
"""Fields that a worker may refuse. Engines call what they are given a prompt: that is the caller's `input`."""
_FIELD = re.compile(r"([a-z_]+)(?:\.[a-z_]+|\[\d+\])*(?=:? )")


def failure(error: Mapping[str, Any]) -> ApiError:
    """Returns the error for the client of a failed response, whose `error` this is.

    It is an InvalidRequest if the response failed because of what its caller sent, Unavailable or TimedOut for a passed
    deadline, and a ServerFault for every other failure.
    """
    code, message = code_of(error), error["message"]
    if code in BAD_PROMPT_CODES:
        return InvalidRequest(message, field_of(message) or BAD_PROMPT_CODES[code], code)
    return FAILURES.get(code, ServerFault)(message, code=code)


def error_of(response: Mapping[str, Any]) -> ApiError:
    """Returns the error for the client of a response that failed or was cancelled."""
    return cancelled() if response["status"] == Status.CANCELLED.value else failure(response["error"])


def cancelled() -> InvalidRequest:
    """Returns the error for the client of a cancelled response: clients that repeat a request repeat none that is
    refused."""
    return InvalidRequest("The work on this request was cancelled.", code="response_cancelled")


def field_of(message: str) -> str | None:
    """Returns the field of the request that a worker's message begins with, if it begins with one."""
    found = _FIELD.match(message)
    if found is None or found.group(1) not in _FIELDS:
        return None
    return found.group(0)
