"""Why the pool cancelled the job that is running. `ErrorHandler` asks when a run ends in a CancelledError.

A library may swallow a CancelledError (redis-py 8.1 does while it connects), so ask before long work as well. The pool
cancels a job once, so a second reason does not interrupt the clean-up, and waits for the clean-up for up to
`workers.celery_host.jobs.CLEANUP_SECONDS`. The answer is in a context variable, so it holds in every asyncio task that
the job starts.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import Enum
from typing import Any, Protocol


class Cancelled(Enum):
    """Why the pool cancelled a job."""

    REVOKED = "revoked"
    """Revoke or Terminate in Flower, or the API's cancel."""
    SHUTDOWN = "shutdown"
    """This worker stops; another one goes on with the response."""


class JobState(Protocol):
    """The part of a pool's job that the job itself may look at."""

    cancelled: Cancelled | None
    request: Any
    """Celery's Request (celery.worker.request)."""


current_job: ContextVar[JobState | None] = ContextVar("current_job", default=None)


def why_cancelled() -> Cancelled | None:
    """Why the pool cancelled the current job; None if it did not, or outside a job."""
    job = current_job.get()
    return None if job is None else job.cancelled
