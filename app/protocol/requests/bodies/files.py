"""The bodies of requests to `/v1/files` and `/v1/uploads`."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from unicodedata import category

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from app.protocol.requests.base import RequestModel, check_type
from app.protocol.requests.validation import refused

MAX_FILE_BYTES = 512 * 1024**2
"""Of a file that one request brings."""
MAX_PART_BYTES = 64 * 1024**2
MAX_UPLOAD_BYTES = 8 * 1024**3
"""Of a file that comes in parts."""
MAX_PARTS = 10_000
MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 2_592_000

_PURPOSES = ("batch", "user_data", "vision")
_OTHERS = {
    "assistants": "send 'user_data'",
    "batch_output": "the server alone makes such files",
    "evals": "send 'user_data'",
    "fine-tune": "this server trains no models",
}


def _check_purpose(value: Any) -> Any:
    check_type(value, _PURPOSES, _OTHERS, "")
    return value


def _check_name(value: str) -> str:
    """Names have spaces of all kinds, and joined emoji: macOS puts U+202F into those of screenshots."""
    if any(category(each) == "Cc" for each in value):
        raise refused("Invalid '{path}': control characters are not allowed.", "invalid_value")
    return value


Purpose = Annotated[Literal["batch", "user_data", "vision"], BeforeValidator(_check_purpose)]
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


class CreateUpload(RequestModel):
    """The body of `POST /v1/uploads`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"bytes": 9, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}]
        }
    )

    bytes: Annotated[int, Field(ge=0, le=MAX_UPLOAD_BYTES)]
    filename: FileName
    mime_type: Annotated[str, Field(max_length=256)]
    purpose: Purpose
    expires_after: ExpiresAfter | None = None


class CompleteUpload(RequestModel, json_schema_extra={"examples": [{"part_ids": ["part_1"]}]}):
    """The body of `POST /v1/uploads/{id}/complete`."""

    part_ids: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=MAX_PARTS, fail_fast=True)]
    md5: Annotated[str | None, Field(pattern=r"^[0-9A-Fa-f]{32}$")] = None
