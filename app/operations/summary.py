"""The deployment at a glance, model by model: pure, from what the rows say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.operations.workers import LIVING, WorkerState, state_of
from app.queue.message import Mode, class_of
from app.scheduling.decisions import QueueState
from app.store.queue.fleet import Begun, FleetFacts, Flow
from app.store.queue.pace import Pace, of_queues
from app.store.queue.worker_rows import WorkerRow


@dataclass(slots=True)
class ClassSummary:
    """What has not ended of one service tier and mode."""

    tier: str
    mode: Mode
    waiting: int = 0
    """In line, responses that have yielded included."""
    paused: int = 0
    """Those of them that operators have paused."""
    sent: int = 0
    running: int = 0
    released: int = 0
    """A worker died or handed them over, and none has them yet."""
    oldest_waiting_seconds: float = 0.0
    """Since the insert of the oldest that was never claimed; 0: there is none."""
    oldest_in_turn_seconds: float = 0.0
    """The same of those that are not paused."""


@dataclass(slots=True)
class ModelSummary:
    """One model, and all that its workers have."""

    model: str
    queue: str
    in_models_file: bool
    workers: dict[str, int] = field(default_factory=lambda: {each.value: 0 for each in WorkerState})
    """By state."""
    older_workers: int = 0
    """Living ones of an older version, which leave to newer ones what they cannot read."""
    slots: int = 0
    """Of ready workers."""
    in_slots: int = 0
    """Running responses that these slots have."""
    ahead: int = 0
    """Running ones that wait in their workers for a slot."""
    is_held_up: bool = False
    """Whether some wait that are not paused."""
    free_slots: int = 0
    """Open to all that waits."""
    is_paused: bool = False
    """All of it, not only some projects."""
    waiting_of: dict[str, int] = field(default_factory=dict)
    """What waits of each project."""
    in_files: int = 0
    """Lines of batches that are no responses yet."""
    in_turn: int = 0
    """What waits, or is in files, and is not paused."""
    suspects: int = 0
    """Responses that have crashed since they made progress."""
    released_suspects: int = 0
    """Those of them that wait for a worker without others' work, at most half a minute."""
    ended_per_second: float = 0.0
    tokens_per_second: float = 0.0
    """Output tokens of responses that ended of late."""
    pace_seconds: float = 0.0
    """The time of which the two are the mean; 0: nothing ended of late."""
    classes: list[ClassSummary] = field(default_factory=list)

    def of_class(self, priority: int) -> ClassSummary:
        """The class of this priority, which is added if it is not there yet."""
        new = ClassSummary(*class_of(priority))
        found = next((each for each in self.classes if (each.tier, each.mode) == (new.tier, new.mode)), None)
        if found is None:
            self.classes.append(new)
        return found or new

    @property
    def waiting(self) -> int:
        return sum(each.waiting for each in self.classes)

    @property
    def paused(self) -> int:
        return sum(each.paused for each in self.classes)

    @property
    def sent(self) -> int:
        return sum(each.sent for each in self.classes)

    @property
    def running(self) -> int:
        return sum(each.running for each in self.classes)

    @property
    def released(self) -> int:
        return sum(each.released for each in self.classes)

    @property
    def oldest_waiting_seconds(self) -> float:
        return max((each.oldest_waiting_seconds for each in self.classes), default=0.0)

    @property
    def empty_in_seconds(self) -> float | None:
        """Until all that is in turn now is sent, at the pace of late; None: never, or nobody knows."""
        if not self.waiting and not self.in_files:
            return 0.0
        return self.in_turn / self.ended_per_second if self.in_turn and self.ready and self.ended_per_second else None

    @property
    def ready(self) -> int:
        return self.workers[WorkerState.READY]


def summaries(
    facts: FleetFacts,
    workers: Sequence[WorkerRow],
    paces: Sequence[Pace],
    states: Mapping[str, QueueState],
    models: Mapping[str, str],
    layout: int,
) -> list[ModelSummary]:
    """All models of the models file (`models`, by queue), and others that have workers or work, in this order.

    `states` are the queues', `layout` is this version's.
    """
    found = {queue: ModelSummary(name, queue, True) for queue, name in models.items()}

    def of(queue: str, name: str | None = None) -> ModelSummary:
        return found.setdefault(queue, ModelSummary(name or queue.removeprefix("model."), queue, False))

    for worker in workers:
        _add_worker(of(worker.queue, worker.model), worker, layout)
    for flow in facts.flows:
        _add_waiting(of(flow.queue), flow, is_paused=facts.is_paused(flow.queue, flow.project))
    for lines in facts.in_files:
        of(lines.queue).in_files += lines.count
        of(lines.queue).in_turn += 0 if facts.is_paused(lines.queue, lines.project) else lines.count
    for begun in facts.begun:
        _add_begun(of(begun.queue), begun)
    rates = of_queues(paces)
    for summary in found.values():
        state = states.get(summary.queue, QueueState())
        summary.is_held_up = state.waits
        summary.free_slots = sum(max(load.open_room, 0) for load in state.loads)
        summary.is_paused = (summary.queue, None) in facts.pauses
        if (rate := rates.get(summary.queue)) is not None:
            summary.ended_per_second, summary.tokens_per_second = rate.ended_per_second, rate.tokens_per_second
            summary.pace_seconds = rate.seconds
        summary.classes.sort(key=lambda each: (each.mode, each.tier))
    return list(found.values())


def _add_worker(summary: ModelSummary, worker: WorkerRow, layout: int) -> None:
    state = state_of(worker)
    summary.workers[state] += 1
    summary.ahead += worker.ahead
    if state is WorkerState.READY:
        summary.slots += worker.slots
        summary.in_slots += worker.in_slots
    summary.older_workers += state in LIVING and worker.layout < layout


def _add_waiting(summary: ModelSummary, flow: Flow, *, is_paused: bool) -> None:
    summary.waiting_of[flow.project] = summary.waiting_of.get(flow.project, 0) + flow.count
    each, oldest = summary.of_class(flow.priority), flow.oldest_seconds or 0.0
    each.waiting += flow.count
    each.oldest_waiting_seconds = max(each.oldest_waiting_seconds, oldest)
    if is_paused:
        each.paused += flow.count
    else:
        summary.in_turn += flow.count
        each.oldest_in_turn_seconds = max(each.oldest_in_turn_seconds, oldest)


def _add_begun(summary: ModelSummary, begun: Begun) -> None:
    summary.suspects += begun.crashed
    each = summary.of_class(begun.priority)
    match begun.state:
        case "sent":
            each.sent += begun.count
            each.oldest_waiting_seconds = max(each.oldest_waiting_seconds, begun.oldest_seconds)
        case "yielded":  # Those in line are among what waits.
            each.sent += begun.count - begun.in_line
        case "running":
            each.running += begun.count
        case _:
            each.released += begun.count
            summary.released_suspects += begun.crashed
