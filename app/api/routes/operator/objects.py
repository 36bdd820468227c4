"""The answers of the operators' API: routes return these objects, and `/docs` shows them."""

from __future__ import annotations

from typing import Any, Generic, Literal, Self

from app.api.admin_objects import Entry, RowShape, Seconds, Shape
from app.operations.conditions import Code, Grade, Names
from app.operations.explanation import Explanation, Reason
from app.operations.models import Backlog as BacklogTotals
from app.operations.models import ModelTotals
from app.operations.service import Deployment
from app.protocol.limits import LimitKind, LimitState
from app.protocol.status import Status
from app.queue.message import Mode, class_of
from app.store.operations.known import KnownResponse
from app.store.operations.snapshot import Snapshot, WorkerState
from app.store.operations.snapshot import Worker as WorkerRow


class Entries(Shape, Generic[Entry]):
    """A list without pages."""

    object: Literal["list"] = "list"
    data: list[Entry]
    has_more: bool = False
    """Whether there are more than `limit`."""


class Worker(RowShape):
    """`draining`: it takes no responses now. `drained`: nor has it any. `absent`: it shows no sign of life. `lost`: its
    lease ran out."""

    id: str
    object: Literal["operator.worker"] = "operator.worker"
    name: str
    model: str
    queue: str
    host: str
    pid: int
    unit: str | None
    """What restarts it: a systemd unit, a pod, or a process of `longhaul up`."""
    devices: str | None
    """As CUDA_VISIBLE_DEVICES names them; null: all of its host."""
    device: str | None
    """Their name."""
    version: str
    state: WorkerState
    draining_since: Seconds | None
    """When an operator drained it."""
    drain_reason: str | None
    slots: int
    running: int
    """Claimed by it, and not ended: in its slots, ahead of them, and in tools."""
    in_slots: int
    ahead: int
    """Running responses that wait in it for a slot."""
    sent: int
    """Sent to it, and not claimed yet."""
    in_tools: int
    """Running responses that wait for their tools, and take no slot."""
    tokens_per_second: float
    """Output tokens of responses that ended of late."""
    pace_seconds: float
    """The time of which that is the mean: since the first of these responses began, and five minutes at most.

    0: none ended."""
    lease_seconds: float
    """Until its lease runs out, unless it is renewed."""
    started_at: Seconds

    @classmethod
    def all_of(cls, snapshot: Snapshot) -> list[Self]:
        return [cls.of_one(snapshot, each) for each in snapshot.workers]

    @classmethod
    def of_one(cls, snapshot: Snapshot, worker: WorkerRow) -> Self:
        paces = [each for each in snapshot.paces if each.node == worker.name]
        rates = {
            "tokens_per_second": round(sum(each.output_tokens / max(each.seconds, 1.0) for each in paces), 1),
            "pace_seconds": round(max((each.seconds for each in paces), default=0.0), 1),
        }
        return cls.of(worker, lease_seconds=round(worker.lease_seconds, 1), **rates)


class Pause(RowShape):
    """What is held back in its line."""

    object: Literal["operator.pause"] = "operator.pause"
    model: str
    queue: str
    project: str | None
    """Null: all projects."""
    since: Seconds
    reason: str | None
    actor: str | None
    """The id of the operator's API key; null: no key was asked for."""


class ClassStatus(RowShape):
    """What has not ended of one service tier and mode."""

    tier: str
    mode: Mode
    waiting: int
    paused: int
    """How many of them operators have paused."""
    sent: int
    running: int
    released: int
    oldest_waiting_seconds: float


class ModelStatus(RowShape):
    """One model. Counts are of responses that have not ended; `waiting` includes those that have yielded."""

    model: str
    queue: str
    in_models_file: bool
    workers: dict[WorkerState, int]
    older_workers: int
    slots: int
    in_slots: int
    """Running responses that these slots have, which are those of ready workers."""
    ahead: int
    """Running responses that wait in their workers for a slot."""
    free_slots: int
    """Open to all that waits."""
    is_paused: bool
    """All of it, not only some projects."""
    waiting: int
    paused: int
    """How many of them operators have paused."""
    in_files: int
    """Lines of batches that are no responses yet."""
    sent: int
    running: int
    released: int
    """A worker died or handed them over, and none has them yet."""
    suspects: int
    oldest_waiting_seconds: float
    """Time since the insert of the oldest that was never claimed; 0: there is none."""
    ended_per_second: float
    tokens_per_second: float
    """This and `ended_per_second` are of responses that ended of late."""
    pace_seconds: float
    """The time of which the two are the mean: since the first of these responses began, and five minutes at most.

    0: none ended."""
    classes: list[ClassStatus]

    @classmethod
    def of(cls, row: ModelTotals, **given: Any) -> Self:
        return super().of(row, classes=[ClassStatus.of(each) for each in row.classes], **given)


class Limit(RowShape):
    """A limit of which hardly anything is left: it refuses requests."""

    project: str
    project_name: str
    model: str
    """`*`: all models together."""
    kind: LimitKind
    value: int
    remaining: int

    @classmethod
    def named(cls, state: LimitState, names: Names) -> Self:
        return cls.of(state, project_name=names.projects.get(state.project, state.project))


class Condition(RowShape):
    """What is wrong or needs attention, in words, and what to do about it."""

    code: Code
    text: str
    advice: str
    model: str | None


class Overview(Shape):
    """The whole deployment. `wrong`: there are `problems`. `attention`: there are `notices` alone."""

    object: Literal["operator.status"] = "operator.status"
    version: str
    grade: Grade
    problems: list[Condition]
    notices: list[Condition]
    models: list[ModelStatus]
    limits: list[Limit]
    pauses: list[Pause]

    @classmethod
    def of(cls, status: Deployment) -> Self:
        return cls(
            version=status.version,
            grade=status.grade,
            problems=[Condition.of(each) for each in status.of_grade(Grade.WRONG)],
            notices=[Condition.of(each) for each in status.of_grade(Grade.ATTENTION)],
            models=[ModelStatus.of(each) for each in status.models],
            limits=[Limit.named(each, status.names) for each in status.snapshot.limits],
            pauses=[Pause.of(each) for each in status.snapshot.pauses],
        )


class Backlog(RowShape):
    """What one model, project or key has that has not ended."""

    object: Literal["operator.backlog"] = "operator.backlog"
    id: str | None
    """The id, or the name of the model; null: asked for without a key."""
    name: str | None
    project: str | None
    """Project of the key."""
    waiting: int
    in_files: int
    """Lines of batches that are no responses yet."""
    sent: int
    running: int
    released: int
    oldest_waiting_seconds: float | None
    """Time since the insert of the oldest that was never claimed; null: there is none."""

    @classmethod
    def of(cls, row: BacklogTotals, **given: Any) -> Self:
        return super().of(row, oldest_waiting_seconds=row.oldest_waiting_seconds or None, **given)


class Why(RowShape):
    """Why a response does not run, where it runs, or how it ended."""

    id: str
    object: Literal["operator.explanation"] = "operator.explanation"
    reason: Reason
    text: str
    advice: str | None
    status: Status
    model: str
    queue: str
    project: str
    project_name: str | None
    key_id: str | None
    tier: str
    mode: Mode
    inserted_at: Seconds
    attempt: int
    worker: str | None
    """The worker that has it, or to which it was sent."""
    behind: int | None
    """About so many of its queue are sent before it; null: it does not wait for its turn."""
    queue_seconds_left: float | None
    """Until it fails unless a worker takes it; null: it may wait without an end, or does not wait."""
    run_seconds_left: float | None

    @classmethod
    def explained(cls, response: KnownResponse, found: Explanation) -> Self:
        tier, mode = class_of(response.priority)
        is_sent = response.sent_at is not None and response.finished_at is None
        queued, runs = response.status == "queued", response.status == "in_progress"
        return cls.of(
            response,
            reason=found.reason,
            text=found.text,
            advice=found.advice,
            tier=tier,
            mode=mode,
            worker=response.worker or (response.sent_to if is_sent else None),
            behind=found.behind,
            queue_seconds_left=response.seconds_until(response.queue_deadline) if queued else None,
            run_seconds_left=response.seconds_until(response.run_deadline) if runs else None,
        )
