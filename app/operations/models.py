"""The deployment model by model, added up from a snapshot for `status` and the gauges: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from app.queue.message import Mode, class_of, model_of
from app.store.layout import LAYOUT
from app.store.operations.snapshot import Count, Pace, Snapshot, Worker, WorkerState


@dataclass(slots=True)
class Totals:
    """Work that has not ended: of a model, a project, a key or a class."""

    waiting: int = 0
    """Responses in line, yielded ones included."""
    paused: int = 0
    """How many of them operators have paused."""
    in_files: int = 0
    """Lines of batches that are no responses yet."""
    sent: int = 0
    running: int = 0
    released: int = 0
    """A worker died or handed them over, and none has them yet."""
    suspects: int = 0
    """Responses that have crashed since they made progress."""
    released_suspects: int = 0
    """How many of them wait for a worker without others' work, at most half a minute."""
    oldest_waiting_seconds: float = 0.0
    """Time since the insert of the oldest that was never claimed; 0: there is none."""
    oldest_in_turn_seconds: float = 0.0
    """The same of those that are not paused."""

    @property
    def unfinished(self) -> int:
        return self.waiting + self.in_files + self.sent + self.running + self.released

    def add(self, count: Count, *, is_paused: bool) -> None:
        self.suspects += count.suspects
        match count.state:
            case "waiting":
                self.waiting += count.number
                self.paused += count.number if is_paused else 0
            case "in_files":
                self.in_files += count.number
            case "running":
                self.running += count.number
            case "released":
                self.released += count.number
                self.released_suspects += count.suspects
            case _:  # Of those that yielded, the ones in line are among what waits.
                self.sent += count.number - count.in_line
        if count.state in ("waiting", "sent"):
            oldest = count.oldest_seconds or 0.0
            self.oldest_waiting_seconds = max(self.oldest_waiting_seconds, oldest)
            if not is_paused:
                self.oldest_in_turn_seconds = max(self.oldest_in_turn_seconds, oldest)


@dataclass(slots=True)
class ClassTotals(Totals):
    """Totals of one service tier and mode."""

    tier: str = ""
    mode: Mode = "background"


@dataclass(slots=True)
class ModelTotals(Totals):
    """One model, and all that its workers have."""

    model: str = ""
    queue: str = ""
    in_models_file: bool = False
    workers: dict[str, int] = field(default_factory=lambda: {each.value: 0 for each in WorkerState})
    """State -> number of workers."""
    older_workers: int = 0
    """Living ones of an older version, which leave to newer ones what they cannot read."""
    slots: int = 0
    """Slots of ready workers."""
    in_slots: int = 0
    """Running responses that these slots have."""
    ahead: int = 0
    """Running ones that wait in their workers for a slot."""
    free_slots: int = 0
    """Open to all that waits."""
    is_paused: bool = False
    """All of it, not only some projects."""
    waiting_of: dict[str, int] = field(default_factory=dict)
    """Number of waiting responses of each project."""
    ended_per_second: float = 0.0
    tokens_per_second: float = 0.0
    """Output tokens of responses that ended of late."""
    pace_seconds: float = 0.0
    """The time of which the two are the mean; 0: nothing ended of late."""
    classes: list[ClassTotals] = field(default_factory=list)

    @property
    def ready(self) -> int:
        return self.workers[WorkerState.READY]

    def of_class(self, tier: str, mode: Mode) -> ClassTotals:
        """Returns the totals of this class, which are added if they are not there yet."""
        found = next((each for each in self.classes if (each.tier, each.mode) == (tier, mode)), None)
        if found is None:
            self.classes.append(found := ClassTotals(tier=tier, mode=mode))
        return found


def model_totals(snapshot: Snapshot, models: Mapping[str, str]) -> list[ModelTotals]:
    """All models of the models file (`models`, by queue), and others that have workers or work, in this order."""
    found = {queue: ModelTotals(model=name, queue=queue, in_models_file=True) for queue, name in models.items()}

    def of(queue: str, name: str | None = None) -> ModelTotals:
        return found.setdefault(queue, ModelTotals(model=name or model_of(queue), queue=queue))

    for worker in snapshot.workers:
        _add_worker(of(worker.queue, worker.model), worker)
    for count in snapshot.counts:
        model, is_paused = of(count.queue), snapshot.is_paused(count.queue, count.project)
        model.add(count, is_paused=is_paused)
        if count.state != "in_files":
            model.of_class(*class_of(count.priority)).add(count, is_paused=is_paused)
        if count.state == "waiting":
            model.waiting_of[count.project] = model.waiting_of.get(count.project, 0) + count.number
    for model in found.values():
        model.is_paused = any((each.queue, each.project) == (model.queue, None) for each in snapshot.pauses)
        _add_pace(model, [each for each in snapshot.paces if each.queue == model.queue])
        model.classes.sort(key=lambda each: (each.mode, each.tier))
    return list(found.values())


def _add_worker(model: ModelTotals, worker: Worker) -> None:
    model.workers[worker.state] += 1
    model.ahead += worker.ahead
    model.older_workers += worker.is_living and worker.layout < LAYOUT
    if worker.is_ready:
        model.slots += worker.slots
        model.in_slots += worker.in_slots
    if worker.load is not None:
        model.free_slots += max(worker.load.open_room, 0)


def _add_pace(model: ModelTotals, paces: Sequence[Pace]) -> None:
    """The rates of all workers of a queue, over the longest time of one of them."""
    if not paces:
        return
    seconds = max(1.0, *(each.seconds for each in paces))
    model.pace_seconds = seconds
    model.ended_per_second = sum(each.ended for each in paces) / seconds
    model.tokens_per_second = sum(each.output_tokens for each in paces) / seconds


# -- the queue, by what is asked for -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Backlog(Totals):
    """Unfinished responses of one model, project or key."""

    id: str | None = None
    """The project's or key's id, or the model's name; None: responses that were asked for without a key."""
    name: str | None = None
    """Name of the project or key. None: it has none any more."""
    project: str | None = None
    """Project of the key."""


def backlog(snapshot: Snapshot, by: str, models: Mapping[str, str]) -> list[Backlog]:
    """The entries with most unfinished responses first. `by` is "model", "project" or "key"."""
    found: dict[tuple[str | None, str | None], Backlog] = {}
    for count in snapshot.counts:
        key = _key(count, by, models)
        entry = found.setdefault(key, Backlog(id=key[0], project=key[1]))
        entry.add(count, is_paused=snapshot.is_paused(count.queue, count.project))
    return sorted(found.values(), key=lambda entry: (-entry.unfinished, entry.id or ""))


def _key(count: Count, by: str, models: Mapping[str, str]) -> tuple[str | None, str | None]:
    if by == "model":
        return models.get(count.queue, model_of(count.queue)), None
    return (count.project, None) if by == "project" else (count.key_id, count.project)


def about_ahead(counts: Iterable[Count], project: str, priority: int, before: int, *, foreground: bool) -> int:
    """About how many of a queue are sent before a response of this flow, of which `before` wait before it: flows take
    turns, so every other one sends as many as it has, up to those and one more. Weights and costs do not count here.

    `counts` are those of the queue that wait and are not paused. A `foreground` response stands in a line of the
    foreground alone.
    """
    others: dict[tuple[str, int], int] = {}
    for each in counts:
        flow = (each.project, each.priority)
        if flow != (project, priority) and (not foreground or class_of(each.priority)[1] == "foreground"):
            others[flow] = others.get(flow, 0) + each.number
    return before + sum(min(number, before + 1) for number in others.values())
