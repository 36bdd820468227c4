"""The form of `POST /v1/files`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args
from unicodedata import category

from pydantic import AfterValidator, BeforeValidator, Field

from app.protocol.requests.base import RequestModel, check_type
from app.protocol.requests.validation import refused

MAX_FILE_BYTES = 512 * 1024**2
MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 2_592_000

FilePurpose = Literal["batch", "batch_output", "user_data", "vision"]
UPLOADED = tuple(purpose for purpose in get_args(FilePurpose) if purpose != "batch_output")
"""Purposes that a client may give a file."""
_OTHERS = {
    "assistants": "send 'user_data'",
    "batch_output": "the server alone makes such files",
    "evals": "send 'user_data'",
    "fine-tune": "this server trains no models",
}


def _check_purpose(value: Any) -> Any:
    check_type(value, UPLOADED, _OTHERS, "")
    return value


def _check_name(value: str) -> str:
    """Names have spaces of all kinds, and joined emoji: macOS puts U+202F into those of screenshots."""
    if any(category(each) == "Cc" for each in value):
        raise refused("Invalid '{path}': control characters are not allowed.", "invalid_value")
    return value


Purpose = Annotated[FilePurpose, BeforeValidator(_check_purpose)]
FileName = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_check_name)]


class ExpiresAfter(RequestModel):
    """When a file is deleted; without it, it stays."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)]


class CreateFile(RequestModel):
    """The form of `POST /v1/files`; `filename` is that of its field `file`."""

    filename: FileName
    purpose: Purpose
    expires_after: ExpiresAfter | None = None
