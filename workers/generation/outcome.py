"""How a run ended: what the runner returns, and what the Celery task shows to operators."""

from __future__ import annotations

from enum import Enum


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
