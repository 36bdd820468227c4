"""One line of a batch's file: the request in it, or what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from app.batches.jsonl import RawLine
from app.chat.translation import ChatRequest, chat_request
from app.protocol.errors import ApiError, InvalidRequest
from app.protocol.requests.base import RequestModel
from app.protocol.requests.bodies.batch import CHAT, RESPONSES
from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.protocol.requests.strict_json import decode_object
from app.protocol.requests.tools.omitted import omit_tools
from app.protocol.requests.validation import validate
from app.protocol.text import shortened, type_and_places
from app.protocol.types import Json

log = logging.getLogger("longhaul.batches")

_READERS: Mapping[str, Callable[[Mapping[str, Any]], ResponseRequest]] = MappingProxyType(
    {RESPONSES: checked_request, CHAT: chat_request}
)
"""The reader of a line's body, by the endpoint of its batch."""

MAX_CUSTOM_ID_CHARS = 512

BROKEN = "The request could not be checked."
"""The client's error for a line whose check failed in a way that nobody foresaw."""

_REFUSED = {
    "stream": "a batch has no stream; GET /v1/batches/{batch_id}/results follows it",
    "background_options": "the batch has a completion window of its own",
}
"""Fields of a body that may be false or absent alone, and why."""


@dataclass(eq=False)
class LineError(Exception):
    """An error of a line, as `errors` of its batch has it."""

    line: int | None
    """The line's number; None: the error is about the whole file."""
    code: str
    message: str
    param: str | None = None

    def body(self) -> Json:
        """Returns openai's BatchError."""
        return {"line": self.line, "code": self.code, "message": self.message, "param": self.param}


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A line whose request was checked."""

    number: int
    custom_id: str
    request: ResponseRequest


@dataclass(slots=True)
class BrokenLines:
    """Lines of one batch whose check failed in a way that nobody foresaw.

    The first one is logged, because the others mostly fail for the same reason.
    """

    has_any: bool = False

    def note(self, batch_id: str, line: int, error: Exception) -> None:
        if not self.has_any:
            log.error("%s: line %d cannot be checked: %s", batch_id, line, type_and_places(error))
        self.has_any = True


class _Line(RequestModel):
    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_CUSTOM_ID_CHARS)]
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


def read_line(line: RawLine, endpoint: str, max_bytes: int, omitted: Collection[str] = ()) -> BatchLine:
    """Returns the request in a line of a batch of this endpoint, without `omitted` tools. Raises LineError."""
    if line.data is None:
        raise LineError(line.number, "line_too_long", f"The line is longer than {max_bytes} bytes.")
    try:
        sent = validate(_Line, decode_object(line.data, what="line", code="invalid_json_line"))
        if sent.url != endpoint:
            message = f"Invalid value for 'url': '{shortened(sent.url)}'. The batch's endpoint is '{endpoint}'."
            raise InvalidRequest(message, "url", "mismatched_endpoint")
        body = omit_tools(sent.body, omitted)
        return BatchLine(line.number, sent.custom_id, _request(body, endpoint, len(line.data)))
    except InvalidRequest as refused:
        raise line_error(line.number, refused) from None


def custom_id_of(line: RawLine) -> str:
    """Returns the `custom_id` of a line that was good when its batch began; an empty one if it cannot be read."""
    with suppress(orjson.JSONDecodeError, KeyError, TypeError, RecursionError):
        found = orjson.loads(line.data or b"")["custom_id"]
        return found if isinstance(found, str) else ""
    return ""


def line_error(number: int | None, refused: ApiError) -> LineError:
    """Returns what is wrong with a line whose request was refused; None: with the whole batch."""
    error = refused.error
    return LineError(number, error.code or "invalid_value", error.message, error.param)


def refused_in(line: BatchLine, refused: ApiError) -> ApiError:
    """Returns the error of a good line's request that was refused later, about its field as the line has it."""
    if isinstance(line.request, ChatRequest):
        refused.error = line.request.names.error(refused.error)
    return in_body(refused)


def in_body(refused: ApiError) -> ApiError:
    """Returns the error of a line's request, about its field in the line: `model` becomes `body.model`."""
    param = refused.error.param
    refused.error = replace(refused.error, param="body" if param is None else f"body.{param}")
    return refused


def _request(body: Mapping[str, Any], endpoint: str, size: int) -> ResponseRequest:
    """A request in the background. Raises InvalidRequest, whose `param` begins with `body.`."""
    try:
        for field, why in _REFUSED.items():
            if body.get(field):
                raise InvalidRequest(f"Invalid '{field}': {why}.", field, "unsupported_parameter")
        request = _READERS[endpoint](body)
        return replace(request, fields=request.fields.model_copy(update={"background": True}), size=size)
    except InvalidRequest as refused:
        raise in_body(refused) from None
