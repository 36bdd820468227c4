"""What needs an operator's attention although nothing is broken: pure, from what the rows say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.operations.summary import ClassSummary, ModelSummary
from app.operations.words import count_of, moment, some_of, span
from app.operations.workers import LIVING, WorkerState, state_of
from app.store.operations.casualties import Death
from app.store.queue.pauses import PauseRow
from app.store.queue.worker_rows import WorkerRow
from app.store.tenants.full_limits import FullLimit

STILL_SECONDS = 30.0
"""How old the oldest response of a class is that stands still."""


class NoticeCode(StrEnum):
    """What needs attention, in a word that programs may rely on."""

    PAUSED = "paused"
    WORKER_DIED = "worker_died"
    WORKER_DRAINS = "worker_drains"
    STANDS_STILL = "stands_still"
    LIMITS_REACHED = "limits_reached"


@dataclass(frozen=True, slots=True)
class Notice:
    code: NoticeCode
    text: str
    advice: str
    model: str | None = None
    """None: it is not about one model."""


@dataclass(frozen=True, slots=True)
class Names:
    """What ids are called: projects, and operators' keys."""

    projects: Mapping[str, str]
    keys: Mapping[str, str]

    def project(self, project_id: str) -> str:
        return f"project {self.projects[project_id]}" if project_id in self.projects else f"project {project_id}"

    def actor(self, key_id: str | None) -> str:
        if key_id is None:
            return "a command beside the services"
        return f"{self.keys[key_id]} ({key_id})" if key_id in self.keys else key_id


def notices(
    models: Sequence[ModelSummary],
    workers: Sequence[WorkerRow],
    deaths: Sequence[Death],
    pauses: Sequence[PauseRow],
    limits: Sequence[FullLimit],
    names: Names,
) -> list[Notice]:
    """All that needs attention, in the order of its codes."""
    by_queue = {model.queue: model for model in models}
    found = [_paused(each, by_queue.get(each.queue), names) for each in pauses]
    here = {each.name for each in workers if state_of(each) in LIVING}
    found += [_died(each, by_queue.get(each.queue), workers) for each in deaths if each.node not in here]
    found += [_drains(each) for each in workers if state_of(each) in (WorkerState.DRAINING, WorkerState.DRAINED)]
    for model in models:
        found += _still(model)
    if limits:
        found.append(_limits(limits))
    return found


def _paused(pause: PauseRow, model: ModelSummary | None, names: Names) -> Notice:
    what, option, waits = pause.model, "", 0 if model is None else model.waiting
    if pause.project is not None:
        what, option = f"{names.project(pause.project)} in {pause.model}", f" --project {pause.project}"
        waits = 0 if model is None else model.waiting_of.get(pause.project, 0)
    return Notice(
        NoticeCode.PAUSED,
        f"Paused: {what}, since {moment(pause.since)}, by {names.actor(pause.actor)}, {_why(pause.reason)}."
        f" {count_of(waits, 'response')} of it {'waits' if waits == 1 else 'wait'}.",
        "New background requests are accepted and wait; new foreground requests get 503."
        f" `longhaul resume {pause.model}{option}` ends it.",
        pause.model,
    )


def _died(death: Death, model: ModelSummary | None, workers: Sequence[WorkerRow]) -> Notice:
    name = death.queue.removeprefix("model.") if model is None else model.model
    left = count_of(0 if model is None else model.ready, "worker")
    ready = [each for each in workers if each.queue == death.queue and state_of(each) is WorkerState.READY]
    started = [each for each in ready if each.started_at > death.at]
    since = f", {some_of([f'{each.name} since {moment(each.started_at)}' for each in started], 3)} among them"
    moved = death.responses - death.waiting
    went = (
        f"{count_of(moved, 'response')} of it went to other workers" if moved else "no other worker has its responses"
    )
    waits = f", {count_of(death.waiting, 'response')} still {'waits' if death.waiting == 1 else 'wait'}"
    return Notice(
        NoticeCode.WORKER_DIED,
        f"Worker {death.node} died at {moment(death.at)}: {went}{waits if death.waiting else ''}."
        f" {name} has {left} ready now{since if started else ''}.",
        "The last lines of its log say why, or `dmesg` on its machine.",
        name,
    )


def _drains(worker: WorkerRow) -> Notice:
    has = worker.running + worker.sent
    what = f"has {count_of(has, 'response')}" if has else "has no responses any more"
    if worker.draining_since is None:
        return Notice(
            NoticeCode.WORKER_DRAINS,
            f"Worker {worker.name} takes no responses now, and {what}: it stops, or has no connection to Redis.",
            "Its log says which.",
            worker.model,
        )
    return Notice(
        NoticeCode.WORKER_DRAINS,
        f"Worker {worker.name} is {state_of(worker).value} since {moment(worker.draining_since)},"
        f" {_why(worker.drain_reason)}, and {what}.",
        f"It is sent nothing more. `longhaul undrain {worker.name}` ends it.",
        worker.model,
    )


def _still(model: ModelSummary) -> Iterator[Notice]:
    """Of classes that wait while others run: without a worker, or paused, the whole model does."""
    if not model.ready or model.is_paused or not model.running:
        return
    for each in model.classes:
        if _stands_still(each):
            waits = each.waiting - each.paused
            yield Notice(
                NoticeCode.STANDS_STILL,
                f"{count_of(waits, 'response')} of {model.model}, {each.tier}, {each.mode},"
                f" {'waits' if waits == 1 else 'wait'} and none of that class runs; the oldest has waited for"
                f" {span(each.oldest_in_turn_seconds)}.",
                "Other classes have the slots: `longhaul queue --by project` shows whose they are. Add workers, or"
                " pause what can wait.",
                model.model,
            )


def _stands_still(of: ClassSummary) -> bool:
    return of.waiting > of.paused and not of.running and not of.sent and of.oldest_in_turn_seconds >= STILL_SECONDS


def _limits(limits: Sequence[FullLimit]) -> Notice:
    told = [
        f"{each.state.kind.value} of project {each.project_name} ({each.state.value:,}"
        f"{'' if each.state.model == '*' else f' for {each.state.model}'}, {each.state.remaining:,} left)"
        for each in limits
    ]
    used = "limit is used up, and refuses" if len(limits) == 1 else "limits are used up, and refuse"
    return Notice(
        NoticeCode.LIMITS_REACHED,
        f"{len(limits)} {used} requests with 429: {some_of(told, 3)}.",
        f"What waits already goes on. `longhaul limits list {limits[0].project}` shows all of a project's limits.",
    )


def _why(reason: str | None) -> str:
    return f'because of "{reason}"' if reason else "without a reason"
