"""What the operators' API shows of responses and of bulk actions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal, Self

from app.api.admin_objects import RowShape, Seconds, Shape
from app.api.response_lists.objects import ListedObject
from app.operations.bulk import Reach
from app.operations.history import History
from app.protocol.types import Json
from app.store.operations.actions import ActionKind, ActionRow
from app.store.operations.known import LoggedAttempt


class OperatorResponse(ListedObject):
    object: str = "operator.response"
    project: str
    project_name: str | None
    key_id: str | None
    queue: str
    stream: bool
    error_code: str | None
    inserted_at: Seconds
    started_at: Seconds | None
    finished_at: Seconds | None
    sent_at: Seconds | None
    sent_to: str | None
    """The worker that has it, or that had it last."""
    attempt: int
    crashes: int
    """Crashes since it made progress."""
    yields: int
    request_bytes: int
    output_bytes: int
    log_bytes: int
    """Once it has ended."""


class StoryMoment(Shape):
    what: str
    at: float
    """Epoch seconds."""
    attempt: int | None
    worker: str | None


class StoryCall(RowShape):
    number: int
    """Number of its item in the output, from 1 on."""
    type: str
    tool: str | None
    server: str | None
    status: str


class ResponseStory(OperatorResponse):
    """A response, and how it came to where it is."""

    request_id: str | None
    """Id of the request that made it."""
    traceparent: str | None
    moments: list[StoryMoment]
    attempts: list[LoggedAttempt]
    """Its attempts, as long as the log is kept."""
    tool_calls: list[StoryCall]
    """Calls of hosted tools."""
    retried_by: str | None

    @classmethod
    def of_history(cls, history: History) -> Self:
        return cls.of(
            history.response,
            moments=[
                StoryMoment(what=each.what, at=each.at.timestamp(), attempt=each.attempt, worker=each.worker)
                for each in history.moments
            ],
            attempts=list(history.attempts),
            tool_calls=[StoryCall.of(each) for each in history.calls],
        )


class EventName(Shape):
    sequence_number: int
    type: str


class EventNames(Shape):
    object: Literal["list"] = "list"
    status: str
    """Status of the response."""
    data: list[EventName]
    has_more: bool


class ActionCount(Shape):
    """What an action would act on."""

    object: Literal["operator.action_count"] = "operator.action_count"
    kind: Literal["cancel", "retry"]
    matching: int
    is_exact: bool
    """False: there are at least so many."""
    batches: int
    """Batches that the action would cancel as a whole: without those whose responses in progress go on."""
    lines_in_files: int
    """Lines of batches that are no responses yet, and would never become any; of one that is `validating` nobody knows
    them."""

    @classmethod
    def of(cls, kind: ActionKind, found: Reach) -> Self:
        return cls(kind=kind.value, **asdict(found.responses), **asdict(found.of_batches))


class Action(RowShape):
    """What is done to all responses that match a filter, and how far it has come."""

    id: str
    object: Literal["operator.action"] = "operator.action"
    kind: Literal["cancel", "retry"]
    state: Literal["running", "completed", "cancelled", "failed"]
    """`failed`: the server cannot read the filter, because another version wrote it."""
    filter: Json
    reason: str
    actor: str | None
    """The id of an API key; null: no key was asked for."""
    created_at: Seconds
    finished_at: Seconds | None
    matched: int
    """Responses that matched when it was accepted, as far as a count reads: 500,000."""
    done: int
    batches: int
    """Batches that it has cancelled as a whole. They end what is in their files."""
    refused: dict[str, int]
    """Responses that it left as they are, by the reason."""

    @classmethod
    def of(cls, row: ActionRow, **given: Any) -> Self:
        return super().of(row, refused=dict(row.refused), **given)
