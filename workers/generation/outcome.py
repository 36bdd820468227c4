"""How a run ended: what the runner returns, and what the Celery task shows to operators."""

from __future__ import annotations

from enum import Enum

from app.protocol.status import Status


class Outcome(Enum):
    """How `Runner.run` ended. The table in `workers.celery_host.tasks` says what Flower shows for each."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    """The row says failed and has no error. With an error, `run` raises ResponseFailed instead."""
    CANCELLED = "cancelled"
    """The row says cancelled or is deleted, whoever did it and whenever: before the claim or during the run."""
    RELEASED = "released"
    """This worker handed the response back; another one continues it."""
    NOT_CLAIMED = "not claimed"
    """The message was a duplicate, or its row is deleted or final."""
    FENCED = "fenced"
    """Another worker claimed the response while it ran here."""


OUTCOME_BY_STATUS = {
    Status.COMPLETED: Outcome.COMPLETED,
    Status.INCOMPLETE: Outcome.INCOMPLETE,
    Status.FAILED: Outcome.FAILED,
    Status.CANCELLED: Outcome.CANCELLED,
}


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
