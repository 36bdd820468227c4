"""The result of a line, as the output or the error file of its batch has it."""

from __future__ import annotations

from dataclasses import dataclass

from app.chat.completion import completion
from app.protocol.events.frames import encode_line
from app.protocol.failures import failure
from app.protocol.requests.bodies.batch import CHAT
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.batches.results import CANCELLED as CANCELLED_LINE
from app.store.batches.results import ResultRow

_ANSWERED = frozenset({Status.COMPLETED, Status.INCOMPLETE})


def _reason(code: str, message: str) -> Json:
    return {"code": code, "message": message}


EXPIRED = _reason("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = _reason("batch_cancelled", "This request was not finished: its batch was cancelled.")
CANCELLED_ALONE = _reason("response_cancelled", "This request was cancelled.")
_DELETED = _reason("response_deleted", "The response of this request was deleted.")


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a file of results."""

    line: int
    is_answer: bool
    """Whether it belongs to the output file; otherwise to the error file."""
    data: bytes
    """JSON with a LF at its end."""
    error_code: str | None = None
    """Code by which `errors` groups it."""


def result(row: ResultRow, endpoint: str, ended: Json | None) -> Result:
    """Returns the result of a line. `ended` is what ended its batch early: EXPIRED, CANCELLED or nothing."""
    if row.error is not None:
        return _failed(row, None, row.error)
    if row.status == CANCELLED_LINE:
        return _failed(row, None, ended or CANCELLED_ALONE)
    if row.response is None:
        return _failed(row, None, _DELETED)
    response = row.response.as_object([])
    if row.response.status in _ANSWERED:
        body = completion(response) if endpoint == CHAT else response
        return Result(row.line, True, _encoded(row, _reply(row, 200, body), None))
    error = failure(response["error"])
    reply = _reply(row, error.status, error.error.body())
    return Result(row.line, False, _encoded(row, reply, None), error.error.code or error.error.type.value)


def _failed(row: ResultRow, reply: Json | None, error: Json) -> Result:
    return Result(row.line, False, _encoded(row, reply, error), error["code"])


def _reply(row: ResultRow, status: int, body: Json) -> Json:
    return {"status_code": status, "request_id": row.response_id, "body": body}


def _encoded(row: ResultRow, reply: Json | None, error: Json | None) -> bytes:
    shown: Json = {"id": f"batch_req_{row.batch_id.partition('_')[2]}_{row.line}", "custom_id": row.custom_id}
    return encode_line({**shown, "response": reply, "error": error}) + b"\n"
