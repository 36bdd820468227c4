"""How a run ended: what the runner returns, what the Celery task shows to operators, and why the pool cancelled a job.

`ErrorHandler` asks `why_cancelled` when a run ends in a CancelledError. A library may swallow a CancelledError
(redis-py 8.1 does while it connects), so ask before long work as well. The pool cancels a job once, so a second reason
does not interrupt the clean-up, and waits for the clean-up for up to `workers.celery_host.jobs.CLEANUP_SECONDS`. The
answer is in a context variable, so it holds in every asyncio task that the job starts."""

from __future__ import annotations

from contextvars import ContextVar
from enum import Enum
from typing import Any, Protocol


class Outcome(Enum):
    """How `Runner.run` ended, unless it raised ResponseFailed. The first three have the names of final statuses.

    `workers.celery_host.tasks` has a table of what Flower shows for each.
    """

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    """The row says cancelled or is deleted, whoever did it and whenever: before the claim or during the run."""
    RELEASED = "released"
    """This worker handed the response back; another one continues it."""
    YIELDED = "yielded"
    """This worker put the response back in line for a foreground one; it continues in its turn."""
    NOT_CLAIMED = "not claimed"
    """The message was a duplicate, or its row is deleted or final."""
    FENCED = "fenced"
    """Another worker claimed the response while it ran here."""


class ResponseFailed(Exception):
    """The response's row says `failed`; this exception tells Flower.

    `code` and `message` are those of the response's `error`. They are logged and shown to operators, so they hold
    nothing of a prompt or an output.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


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
