"""The bodies of requests to `/v1/operator` that change what workers and queues do."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.protocol.requests.base import RequestModel

Reason = Annotated[str, Field(min_length=1, max_length=500)]
"""For the audit log, and for other operators."""


class ChangeWorker(RequestModel, example={"reason": "its GPU reports errors"}):
    """The body of `POST /v1/operator/workers/{name}/drain` and `/undrain`, which may be empty."""

    reason: Reason | None = None


class PauseModel(RequestModel, example={"model": "qwen3-8b", "reason": "a bad release"}):
    """The body of `POST /v1/operator/pauses`."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    project: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Left out, all projects."""
    reason: Reason | None = None
