"""The bodies of requests to `/v1/operator`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.protocol.requests.base import RequestModel

MAX_IDS = 1000
"""Responses that a filter names."""
MAX_TIME = 253_402_300_740
"""The last minute of the year 9999, the last that Python's dates have."""

StatusName = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
Text = Annotated[str, Field(min_length=1, max_length=512)]
Reason = Annotated[str, Field(min_length=1, max_length=500)]
"""For the audit log, and for other operators."""
Moment = Annotated[int, Field(ge=0, le=MAX_TIME)]


class ResponsesFilter(RequestModel):
    """Which responses an action is about; what is left out limits nothing."""

    ids: Annotated[list[Text], Field(max_length=MAX_IDS, fail_fast=True)] = Field(default_factory=list)
    status: Annotated[list[StatusName], Field(max_length=6)] = Field(default_factory=list)
    """By default what the action applies to: unfinished ones are cancelled, and failed ones retried."""
    project: Text | None = None
    """The id of a project, or its name if no other has it."""
    model: Text | None = None
    key: Text | None = None
    """The id of an API key."""
    batch: Text | None = None
    """The id of a batch."""
    request_id: Text | None = None
    """The `x-request-id` of the requests that made them."""
    service_tier: Literal["default", "flex", "priority"] | None = None
    error_code: Text | None = None
    metadata: Annotated[dict[Text, str], Field(max_length=16)] = Field(default_factory=dict)
    created_after: Moment | None = None
    """Epoch seconds: at this time or later."""
    created_before: Moment | None = None


class StartAction(
    RequestModel,
    example={"kind": "cancel", "filter": {"model": "longhaul-demo"}, "reason": "a wrong prompt was rolled out"},
):
    """The body of `POST /v1/operator/actions`."""

    kind: Literal["cancel", "retry"]
    filter: ResponsesFilter = Field(default_factory=ResponsesFilter)
    reason: Reason | None = None
    """For the audit log. It may be left out with `dry_run`."""
    all: bool = False
    """Permits a filter that says nothing, and so matches everything."""
    dry_run: bool = False
    """Only counts."""


class ChangeWorker(RequestModel, example={"reason": "its GPU reports errors"}):
    """The body of `POST /v1/operator/workers/{name}/drain` and `/undrain`, which may be empty."""

    reason: Reason | None = None


class PauseModel(RequestModel, example={"model": "qwen3-8b", "reason": "a bad release"}):
    """The body of `POST /v1/operator/pauses`."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    project: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Left out, all projects."""
    reason: Reason | None = None
