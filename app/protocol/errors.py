"""The errors that a request can be refused with, and the HTTP status of each, which lines of batches have, too.

ApiError
 ├── InvalidRequest         the client's fault: a field, a value, or a state that does not allow the request
 │    ├── TooLarge, UrlTooLong, HeadTooLarge, RequestTimeout, UnsupportedMedia, MethodNotAllowed, Misdirected
 │    ├── RangeNotSatisfiable, KeyReused
 │    └── Unauthorized, Forbidden
 ├── LimitReached           the request does not fit into a limit of its project
 ├── ShareUsed              its project holds its share of what the process, or the deployment, may hold
 ├── NotFound               no such response, model or route
 ├── Unavailable            Postgres, Redis or the workers are away; the same request may succeed later
 │    └── ModelPaused       operators have paused the model, or the project there
 ├── TimedOut               the response ran for longer than its run timeout
 └── ServerFault            generation failed, or the server has a bug
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar

from app.protocol.limits import ALL_MODELS, TOKENS, LimitKind, Shortage
from app.protocol.text import bounded


class ErrorType(Enum):
    """`error.type`, with OpenAI's names."""

    INVALID_REQUEST = "invalid_request_error"
    SERVER = "server_error"
    REQUESTS = "requests"
    TOKENS = "tokens"
    QUOTA = "insufficient_quota"


@dataclass(frozen=True, slots=True)
class ErrorObject:
    """One error, as clients read it. However long what was sent is, `message` and `param` are not."""

    message: str
    type: ErrorType
    param: str | None = None
    """The field at fault, as the client wrote it: `input[2].content[0].text`."""
    code: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", bounded(self.message))
        object.__setattr__(self, "param", None if self.param is None else bounded(self.param))

    def body(self) -> dict[str, Any]:
        """Returns the JSON body, in the shape of OpenAI's API."""
        return {
            "error": {"message": self.message, "type": self.type.value, "param": self.param, "code": self.code},
        }


class ApiError(Exception):
    """The request is refused. `message` is one line for the client."""

    status: ClassVar[int] = 400
    """HTTP status."""
    type: ClassVar[ErrorType] = ErrorType.INVALID_REQUEST
    default_code: ClassVar[str | None] = None

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        self.error = ErrorObject(message, self.type, param, code or self.default_code)
        super().__init__(self.error.message)


class InvalidRequest(ApiError):
    """The client can correct the request."""


class KeyReused(InvalidRequest):
    """The project has used the idempotency key for another request."""

    def __init__(self) -> None:
        message = "The Idempotency-Key was used for a request with another body; choose a new key."
        super().__init__(message, "Idempotency-Key", "idempotency_key_reused")


class TooLarge(InvalidRequest):
    status = 413
    default_code = "request_too_large"


class UrlTooLong(InvalidRequest):
    status = 414
    default_code = "url_too_long"


class HeadTooLarge(InvalidRequest):
    status = 431
    default_code = "headers_too_large"


class RequestTimeout(InvalidRequest):
    """The client did not send its request in time."""

    status = 408
    default_code = "request_timeout"


class Misdirected(InvalidRequest):
    """The request names a host that this server does not serve."""

    status = 421
    default_code = "host_not_allowed"


class UnsupportedMedia(InvalidRequest):
    status = 415
    default_code = "unsupported_media_type"


class MethodNotAllowed(InvalidRequest):
    status = 405
    default_code = "method_not_allowed"


class RangeNotSatisfiable(InvalidRequest):
    """The range that the client asks for has no byte."""

    status = 416
    default_code = "range_not_satisfiable"


class Unauthorized(InvalidRequest):
    """The request has no API key that works."""

    status = 401
    default_code = "invalid_api_key"


class Forbidden(InvalidRequest):
    status = 403
    default_code = "forbidden"


class LimitReached(ApiError):
    """The request does not fit into a limit of its project. Nothing was stored."""

    status = 429

    def __init__(self, shortage: Shortage) -> None:
        kind = shortage.limit.kind
        is_spent = kind is LimitKind.TOKENS_PER_DAY and shortage.wait_seconds is not None
        super().__init__(_shortage_message(shortage), code="insufficient_quota" if is_spent else "rate_limit_exceeded")
        type_ = ErrorType.QUOTA if is_spent else ErrorType.TOKENS if kind in TOKENS else ErrorType.REQUESTS
        self.error = replace(self.error, type=type_)
        self.shortage = shortage


class ShareUsed(ApiError):
    """The project holds as much of something as it may hold beside others. Nothing was stored."""

    status = 429
    type = ErrorType.REQUESTS
    default_code = "rate_limit_exceeded"


def _shortage_message(shortage: Shortage) -> str:
    limit = shortage.limit
    scope = "all models" if limit.model == ALL_MODELS else f"the model '{limit.model}'"
    where = f"Limit '{limit.kind.value}' of project '{limit.project}' for {scope}"
    if limit.kind is LimitKind.STORED_BYTES and shortage.requested <= limit.value:
        advice = "Delete files, responses or conversations that are not needed any more."
    elif limit.kind is LimitKind.STORED_BYTES and shortage.wait_seconds is None:
        advice = "Such a request never fits; send less at once."
    elif shortage.wait_seconds is None:
        advice = "Such a request never fits; send a shorter input or a smaller 'max_output_tokens'."
    else:
        advice = f"Please try again in {shortage.wait_seconds:.3g}s."
    taken = f"{limit.value}, taken {limit.value - limit.remaining}, requested {shortage.requested}"
    return f"{where} reached: {taken}. {advice}"


class NotFound(ApiError):
    status = 404
    default_code = "not_found"


class Unavailable(ApiError):
    status = 503
    type = ErrorType.SERVER
    default_code = "service_unavailable"


class ModelPaused(Unavailable):
    """The request would wait for operators, and its client for it. Nothing was stored."""

    default_code = "model_paused"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model '{model}' is paused for this project by the operators. Send the request later, or with "
            "'background: true': then it waits until the model is resumed, or its 'queue_timeout' has passed."
        )


class TimedOut(ApiError):
    status = 504
    type = ErrorType.SERVER
    default_code = "run_timeout"


class ServerFault(ApiError):
    status = 500
    type = ErrorType.SERVER
    default_code = "server_error"


BAD_PROMPT_CODES: Mapping[str, str] = MappingProxyType(
    {
        "context_length_exceeded": "input",
        "invalid_prompt": "input",
        "previous_response_not_found": "previous_response_id",
    }
)
"""Codes of a failed response's `error` that mean a fault of the client, each with the field at fault."""

FAILURES: Mapping[str, type[ApiError]] = MappingProxyType({"queue_timeout": Unavailable, "run_timeout": TimedOut})
"""Other codes of a failed response's `error`, each with the error for a client that waits for the response."""
