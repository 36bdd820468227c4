"""The result of a line, as the output or the error file of its batch has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from app.batches.line import CHAT
from app.chat.completion import completion
from app.protocol.errors import ApiError, ErrorObject
from app.protocol.failures import failure
from app.protocol.status import Status
from app.protocol.types import Json

_ANSWERED = frozenset({Status.COMPLETED.value, Status.INCOMPLETE.value})

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was not finished, because its batch was cancelled.")
"""The errors of lines without an answer: code and message."""


@dataclass(frozen=True, slots=True)
class EndedLine:
    """A line whose response has ended."""

    number: int
    custom_id: str
    response: Mapping[str, Any]
    """As `GET /v1/responses/{id}` shows it."""
    request_id: str
    has_expired: bool = False
    """Whether its window ended it."""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a file of results."""

    number: int
    is_answer: bool
    """Whether it belongs to the output file; otherwise to the error file."""
    data: bytes
    """JSON with a LF at its end."""
    error_code: str | None = None
    """By which `errors` groups it."""


def result(line: EndedLine, endpoint: str, status_of: Callable[[ApiError], int]) -> Result:
    """Returns the result of a line. `status_of` gives an error its HTTP status."""
    if line.response["status"] in _ANSWERED:
        body = completion(line.response) if endpoint == CHAT else line.response
        return Result(line.number, True, _encoded(line, _reply(line, 200, body), None))
    if line.response["status"] == Status.CANCELLED.value:
        code, message = EXPIRED if line.has_expired else CANCELLED
        return Result(line.number, False, _encoded(line, None, {"code": code, "message": message}), code)
    error = failure(line.response["error"])
    reply = _reply(line, status_of(error), error.error.body())
    return Result(line.number, False, _encoded(line, reply, None), _code_of(error.error))


def _code_of(error: ErrorObject) -> str:
    return error.code or error.type.value


def _reply(line: EndedLine, status: int, body: Mapping[str, Any]) -> Json:
    return {"status_code": status, "request_id": line.request_id, "body": body}


def _encoded(line: EndedLine, reply: Json | None, error: Json | None) -> bytes:
    suffix = line.response["id"].partition("_")[2]
    shown = {"id": f"batch_req_{suffix}", "custom_id": line.custom_id, "response": reply, "error": error}
    return orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)
