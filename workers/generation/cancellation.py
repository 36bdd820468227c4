"""Why the pool cancelled the job that is running: the runner asks in its clean-up.

    except asyncio.CancelledError:
        match why_cancelled():
            case Cancelled.REVOKED: ...   # an operator or a client: the row becomes `cancelled`
            case Cancelled.SHUTDOWN: ...  # release the row
            case None: ...                # not the pool: the runner stopped its own run, for instance when fenced
        return Outcome.CANCELLED          # or RELEASED, ...; raising the error again is fine too

A library may swallow a CancelledError (redis-py 8.1 does while it connects), so ask `why_cancelled` before long work
as well. The pool cancels a job once: a second reason does not interrupt the clean-up. It waits for the clean-up for up
to `workers.celery_host.jobs.CLEANUP_SECONDS`. Others may cancel the task again; a clean-up that must not be interrupted
shields itself. The answer is in a context variable, so it holds in every asyncio task that the job starts.
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
