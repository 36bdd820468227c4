"""What a request is refused with: the vocabulary of errors, without HTTP (`app/api/errors.py` maps it).

ApiError
 ├── InvalidRequest         the caller's fault: a field, a value, a state that does not allow it
 │    └── TooLarge, UnsupportedMedia, MethodNotAllowed, Forbidden
 ├── NotFound               no such response, model or route
 ├── Unavailable            a service that we need is away; the same request may work in a second
 ├── TimedOut               it ran for longer than it may
 └── ServerFault            generation went wrong, or a bug of ours
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar


class ErrorType(Enum):
    """`error.type`, as OpenAI names them."""

    INVALID_REQUEST = "invalid_request_error"
    SERVER = "server_error"


@dataclass(frozen=True, slots=True)
class ErrorObject:
    """One error as clients read it."""

    message: str
    type: ErrorType
    param: str | None = None
    """The field at fault, as the caller wrote it: `input[2].content[0].text`."""
    code: str | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body; its shape is that of OpenAI's API."""
        return {
            "error": {"message": self.message, "type": self.type.value, "param": self.param, "code": self.code},
        }


class ApiError(Exception):
    """A request answered with an error. `message` is one line for the caller."""

    type: ClassVar[ErrorType] = ErrorType.INVALID_REQUEST
    default_code: ClassVar[str | None] = None

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.error = ErrorObject(message, self.type, param, code or self.default_code)


class InvalidRequest(ApiError):
    """The caller can mend it."""


class TooLarge(InvalidRequest):
    default_code = "request_too_large"


class UnsupportedMedia(InvalidRequest):
    default_code = "unsupported_media_type"


class MethodNotAllowed(InvalidRequest):
    default_code = "method_not_allowed"


class Forbidden(InvalidRequest):
    default_code = "forbidden"


class NotFound(ApiError):
    default_code = "not_found"


class Unavailable(ApiError):
    type = ErrorType.SERVER
    default_code = "service_unavailable"


class TimedOut(ApiError):
    type = ErrorType.SERVER
    default_code = "run_timeout"


class ServerFault(ApiError):
    type = ErrorType.SERVER
    default_code = "server_error"


BAD_PROMPT_CODES: Mapping[str, str] = MappingProxyType(
    {
        "context_length_exceeded": "input",
        "invalid_prompt": "input",
        "previous_response_not_found": "previous_response_id",
    }
)
"""Codes in the `error` of a failed response that say: the caller is at fault, not the server; and with which field."""

FAILURES: Mapping[str, type[ApiError]] = MappingProxyType({"queue_timeout": Unavailable, "run_timeout": TimedOut})
"""Other codes in the `error` of a failed response -> what a client that waited for it is refused with."""
