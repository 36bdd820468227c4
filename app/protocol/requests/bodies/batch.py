"""The body of `POST /v1/batches`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from app.protocol.requests.base import ItemId, RequestModel
from app.protocol.requests.fields import Metadata
from app.protocol.requests.validation import refused

RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"
ENDPOINTS = (RESPONSES, CHAT)

WINDOWS: Mapping[str, float] = MappingProxyType({"24h": 24 * 3600.0, "8h": 8 * 3600.0, "2h": 2 * 3600.0})
"""`completion_window`: the seconds in which the batch is to end; `8h` and `2h` are extensions."""

MIN_OUTPUT_SECONDS = 3600
MAX_OUTPUT_SECONDS = 30 * 86400


def _check_endpoint(value: str) -> str:
    if value not in ENDPOINTS:
        allowed = ", ".join(f"'{endpoint}'" for endpoint in ENDPOINTS)
        raise refused(f"Invalid value for '{{path}}'. Supported values are: {allowed}.", "invalid_value")
    return value


class OutputExpiry(RequestModel):
    """How long the files of results are kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_OUTPUT_SECONDS, le=MAX_OUTPUT_SECONDS)]


class CreateBatch(
    RequestModel,
    example={"input_file_id": "file-abc123", "endpoint": RESPONSES, "completion_window": "24h"},
):
    """The body of `POST /v1/batches`."""

    input_file_id: ItemId
    endpoint: Annotated[str, AfterValidator(_check_endpoint)]
    completion_window: Literal["24h", "8h", "2h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None
