"""What a job ended with, as the runner says it and the task shows it to operators."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """How `Runner.run` ended. What Flower shows for each is the table in `workers.celery_host.tasks`."""

    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    """Failed, and nothing more is known here. `run` rather raises ResponseFailed, which says why."""
    CANCELLED = "cancelled"
    """The row says cancelled, whoever decided it: before the claim, while it ran, or this job's own clean-up."""
    RELEASED = "released"
    """Handed over: this worker stops, another one goes on."""
    NOT_CLAIMED = "not claimed"
    """A duplicate message, or a row that is gone or final already."""
    LOST = "lost"
    """Fenced: another worker took the response over while this one ran it."""


class ResponseFailed(Exception):
    """A response ended `failed`: the row says so already, this tells Flower.

    `code` and `message` are those of the response's `error`: they are logged and shown to
    operators, so they hold nothing of a prompt or an output.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"
