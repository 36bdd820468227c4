"""What is wrong with a deployment, or needs attention: one table of conditions, over a snapshot. Pure.

A condition has a name, which programs may rely on, a grade, and a test that gives its words: what is, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from app.operations.models import ClassTotals, ModelTotals
from app.operations.words import count_of, moment, resume_command, some_of, span
from app.protocol.limits import LimitState
from app.queue.message import model_of
from app.store.operations.snapshot import Death, Snapshot, Worker, WorkerState

LONG_LOST_SECONDS = 60.0
"""Maintenance removes a worker that is dead within a lease and a half of its last heartbeat, twice that by default."""
LATE_SECONDS = 60.0
"""How late may be what maintenance does every ten seconds."""
LATE_LOG_SECONDS = 3600.0
"""How late the deletion of logs may be: many may be due at once."""
IDLE_PART = 4
"""One of so many slots free while responses wait: a dispatch would have filled them."""
STILL_SECONDS = 30.0
"""How old the oldest response of a class is that stands still."""


class Grade(StrEnum):
    """How the deployment is."""

    FINE = "fine"
    ATTENTION = "attention"
    """Nothing is broken, but something is paused, drained or refused, stands still, or died of late."""
    WRONG = "wrong"


class Code(StrEnum):
    """The worst first."""

    SCHEMA = "schema"
    REDIS_AWAY = "redis_away"
    MAINTENANCE_AWAY = "maintenance_away"
    NO_WORKER = "no_worker"
    DRAINING = "draining"
    OLDER_WORKERS = "older_workers"
    LOST_WORKERS = "lost_workers"
    RELEASED = "released"
    NOT_DISPATCHED = "not_dispatched"
    SUSPECTS = "suspects"
    LOGS_OVERDUE = "logs_overdue"

    PAUSED = "paused"
    WORKER_DIED = "worker_died"
    WORKER_DRAINS = "worker_drains"
    STANDS_STILL = "stands_still"
    LIMITS_REACHED = "limits_reached"
    WEBHOOKS_FAIL = "webhooks_fail"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of projects and of operators' keys, by id."""

    projects: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    def project(self, project_id: str) -> str:
        return f"project {self.projects.get(project_id, project_id)}"

    def actor(self, key_id: str | None) -> str:
        if key_id is None:
            return "somebody without a key"
        return f"{self.keys[key_id]} ({key_id})" if key_id in self.keys else key_id


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that conditions are tested on."""

    snapshot: Snapshot
    models: Sequence[ModelTotals]
    names: Names = field(default_factory=Names)
    redis_answers: bool = True

    def model(self, queue: str) -> ModelTotals:
        found = next((each for each in self.models if each.queue == queue), None)
        return found or ModelTotals(model=model_of(queue), queue=queue)


@dataclass(frozen=True, slots=True)
class Told:
    """A condition in words: what is wrong, and what to do. `model` is None if it is not about one model."""

    text: str
    advice: str
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """One that holds."""

    code: Code
    text: str
    advice: str
    model: str | None


@dataclass(frozen=True, slots=True)
class _Test:
    grade: Grade
    find: Callable[[Facts], Iterator[Told]]
    is_brief: bool = False
    """The condition may hold for a moment while all is well: it counts if a second look finds it again."""


def holding(facts: Facts) -> list[Condition]:
    """The conditions that hold, in the order of the table."""
    return [
        Condition(code, told.text, told.advice, told.model)
        for code, test in CONDITIONS.items()
        for told in test.find(facts)
    ]


def is_brief(condition: Condition) -> bool:
    return CONDITIONS[condition.code].is_brief


def in_both(first: Sequence[Condition], second: Sequence[Condition]) -> list[Condition]:
    """The conditions of the second look, without brief ones that only one of the looks found."""
    known = {(each.code, each.model) for each in first}
    return [each for each in second if not is_brief(each) or (each.code, each.model) in known]


def _schema(_: Facts) -> Iterator[Told]:
    """The service tells it: with another schema there is no snapshot."""
    return iter(())


SCHEMA_CONDITION = Condition(
    Code.SCHEMA,
    "The database's schema is not this version's.",
    "Run `longhaul migrate` by the newest version, or start this one's processes against the right database.",
    None,
)


def _redis_away(facts: Facts) -> Iterator[Told]:
    if not facts.redis_answers:
        yield Told(
            "Redis does not answer: what waits is not sent, and streams have to poll Postgres.",
            "See that it runs and that REDIS_URL is right. Nothing is lost; the queue goes on when it is back.",
        )


def _maintenance_away(facts: Facts) -> Iterator[Told]:
    late = facts.snapshot.late
    if (seconds := max(late.usage, late.deadlines)) > LATE_SECONDS:
        what = "deadlines" if late.deadlines > LATE_SECONDS else "the ledger"
        yield Told(
            f"Maintenance is {span(seconds)} late with {what}: it does not run, or cannot reach Postgres.",
            "Start `longhaul maintenance`, or see its log.",
        )


def _logs_overdue(facts: Facts) -> Iterator[Told]:
    if (seconds := facts.snapshot.late.logs) > LATE_LOG_SECONDS:
        yield Told(
            f"Logs are {span(seconds)} beyond their retention and are not deleted.",
            "Maintenance does not run, or does not keep up: see its log.",
        )


def _lost_workers(facts: Facts) -> Iterator[Told]:
    lost = [each.name for each in facts.snapshot.workers if -each.lease_seconds > LONG_LOST_SECONDS]
    if lost:
        yield Told(
            f"{count_of(len(lost), 'worker')} lost the lease and were not removed ({some_of(lost, 5)}).",
            "Maintenance does not run: start it. It gives their responses to other workers.",
        )


def _draining_workers(model: ModelTotals) -> int:
    return model.workers[WorkerState.DRAINING] + model.workers[WorkerState.DRAINED]


def _no_worker(facts: Facts) -> Iterator[Told]:
    for model in facts.models:
        work = model.waiting + model.released + model.sent
        if not model.ready and not _draining_workers(model) and (model.in_models_file or work):
            waits = f", and {_waits(work, 'response', f' of {model.model}')}" if work else ""
            yield Told(
                f"No worker of {model.model} lives{waits}.",
                f"Start a worker of {model.model}, or see the log of the one that should run.",
                model.model,
            )


def _draining(facts: Facts) -> Iterator[Told]:
    for model in facts.models:
        if not model.ready and (number := _draining_workers(model)):
            yield Told(
                f"No worker of {model.model} takes responses: all that live ({number}) drain.",
                "`longhaul workers` shows which an operator drained; the others stop, or have no connection to Redis.",
                model.model,
            )


def _older_workers(facts: Facts) -> Iterator[Told]:
    for model in facts.models:
        if number := model.older_workers:
            yield Told(
                f"{count_of(number, 'worker')} of {model.model} {_is(number)} of an older version.",
                "Upgrade: older workers leave to newer ones what they cannot read. `longhaul workers --json` has"
                " versions.",
                model.model,
            )


def _released(facts: Facts) -> Iterator[Told]:
    for model in facts.models:
        number = model.released - model.released_suspects
        if number and model.ready:
            yield Told(
                f"{_waits(number, 'response', f' of {model.model}')} for another worker after the last one died or"
                f" handed over, although {count_of(model.ready, 'worker')} {_is(model.ready)} ready.",
                "Maintenance sends them on within a second: see that it runs, and its log.",
                model.model,
            )


def _not_dispatched(facts: Facts) -> Iterator[Told]:
    for model in facts.models:
        free, held_up = model.free_slots, model.waiting > model.paused
        if held_up and model.ready and free and free * IDLE_PART >= model.slots:
            yield Told(
                f"{_waits(model.waiting, 'response', f' of {model.model}')} while {count_of(free, 'slot')} {_is(free)}"
                " free.",
                "Maintenance, workers and API all dispatch: `longhaul doctor` says whether Postgres and Redis answer.",
                model.model,
            )


def _suspects(facts: Facts) -> Iterator[Told]:
    for model in facts.models:
        if not (number := model.suspects):
            continue
        named = [each for each in facts.snapshot.suspects if each.queue == model.queue][:3]
        crashes = "; ".join(f"{each.id}, {count_of(each.crashes, 'crash', 'crashes')}" for each in named)
        yield Told(
            f"{count_of(number, 'response')} of {model.model} may have killed"
            f" {'its worker' if number == 1 else 'their workers'} before making progress"
            f"{f' ({crashes})' if named else ''}.",
            "Suspects run alone until they make progress. One that crashes workers again:"
            f' `longhaul responses cancel {named[0].id if named else "ID"} --reason "it crashes workers"`.',
            model.model,
        )


def _paused(facts: Facts) -> Iterator[Told]:
    for pause in facts.snapshot.pauses:
        model, what = facts.model(pause.queue), pause.model
        waits = model.waiting
        if pause.project is not None:
            what = f"{facts.names.project(pause.project)} in {pause.model}"
            waits = model.waiting_of.get(pause.project, 0)
        yield Told(
            f"Paused: {what}, since {moment(pause.since)}, by {facts.names.actor(pause.actor)}, {_why(pause.reason)}."
            f" {_waits(waits, 'response', ' of it')}.",
            "New background requests are accepted and wait; new foreground requests get 503."
            f" `{resume_command(pause.model, pause.project)}` ends it.",
            pause.model,
        )


def _worker_died(facts: Facts) -> Iterator[Told]:
    here = {each.name for each in facts.snapshot.workers if each.is_living}
    for death in facts.snapshot.deaths:
        if death.node not in here:
            yield _death(death, facts.model(death.queue), facts.snapshot.workers_of(death.queue))


def _death(death: Death, model: ModelTotals, workers: Sequence[Worker]) -> Told:
    replaced = [each for each in workers if each.is_ready and each.started_at > death.at]
    started = [f"{each.name} since {moment(each.started_at)}" for each in replaced]
    since = f", {some_of(started, 3)} among them" if started else ""
    moved = death.responses - death.waiting
    went = (
        f"{count_of(moved, 'response')} of it went to other workers" if moved else "no other worker has its responses"
    )
    waits = f", {_waits(death.waiting, 'response', still=True)}" if death.waiting else ""
    return Told(
        f"Worker {death.node} died at {moment(death.at)}: {went}{waits}."
        f" {model.model} has {count_of(model.ready, 'worker')} ready now{since}.",
        "The last lines of its log say why, or `dmesg` on its machine.",
        model.model,
    )


def _worker_drains(facts: Facts) -> Iterator[Told]:
    for worker in facts.snapshot.workers:
        if worker.state not in (WorkerState.DRAINING, WorkerState.DRAINED):
            continue
        has = worker.running + worker.sent
        what = f"has {count_of(has, 'response')}" if has else "has no responses any more"
        if worker.draining_since is None:
            yield Told(
                f"Worker {worker.name} takes no responses now, and {what}: it stops, or has no connection to Redis.",
                "Its log says which.",
                worker.model,
            )
        else:
            yield Told(
                f"Worker {worker.name} is {worker.state.value} since {moment(worker.draining_since)},"
                f" {_why(worker.drain_reason)}, and {what}.",
                f"It is sent nothing more. `longhaul undrain {worker.name}` ends it.",
                worker.model,
            )


def _stands_still(facts: Facts) -> Iterator[Told]:
    """Names classes that wait while others run. Without a worker, or paused, the whole model waits: that is no sign."""
    for model in facts.models:
        if not model.ready or model.is_paused or not model.running:
            continue
        for each in filter(_is_still, model.classes):
            yield Told(
                f"{_waits(each.waiting - each.paused, 'response', f' of {model.model}, {each.tier}, {each.mode},')}"
                f" and none of that class runs; the oldest has waited for {span(each.oldest_in_turn_seconds)}.",
                "Other classes have the slots: `longhaul queue --by project` shows whose they are. Add workers, or"
                " pause what can wait.",
                model.model,
            )


def _is_still(of: ClassTotals) -> bool:
    return of.waiting > of.paused and not of.running and not of.sent and of.oldest_in_turn_seconds >= STILL_SECONDS


def _limits_reached(facts: Facts) -> Iterator[Told]:
    if limits := facts.snapshot.limits:
        used = "limit is used up, and refuses" if len(limits) == 1 else "limits are used up, and refuse"
        yield Told(
            f"{len(limits)} {used} requests with 429: {some_of([_limit(each, facts.names) for each in limits], 3)}.",
            f"What waits already goes on. `longhaul limits list {limits[0].project}` shows all of a project's limits.",
        )


def _limit(state: LimitState, names: Names) -> str:
    of_model = "" if state.model == "*" else f" for {state.model}"
    return f"{state.kind.value} of {names.project(state.project)} ({state.value:,}{of_model}, {state.remaining:,} left)"


def _webhooks_fail(facts: Facts) -> Iterator[Told]:
    if bad := facts.snapshot.webhooks.bad:
        named = [
            f"{each.id} of {facts.names.project(each.project)}, for {span(each.failing_seconds)}"
            f"{', and is disabled' if each.is_disabled else ''}"
            for each in bad
        ]
        yield Told(
            f"{count_of(len(bad), 'webhook endpoint')} of a project {'fails' if len(bad) == 1 else 'fail'}:"
            f" {some_of(named, 3)}.",
            "`GET /v1/webhook_endpoints/ID/deliveries`, with a key of the project, shows what the endpoint answers;"
            " `disabled: false` enables it again.",
        )


CONDITIONS: Mapping[Code, _Test] = {
    Code.SCHEMA: _Test(Grade.WRONG, _schema),
    Code.REDIS_AWAY: _Test(Grade.WRONG, _redis_away),
    Code.MAINTENANCE_AWAY: _Test(Grade.WRONG, _maintenance_away),
    Code.NO_WORKER: _Test(Grade.WRONG, _no_worker),
    Code.DRAINING: _Test(Grade.WRONG, _draining),
    Code.OLDER_WORKERS: _Test(Grade.WRONG, _older_workers),
    Code.LOST_WORKERS: _Test(Grade.WRONG, _lost_workers),
    Code.RELEASED: _Test(Grade.WRONG, _released, is_brief=True),
    Code.NOT_DISPATCHED: _Test(Grade.WRONG, _not_dispatched, is_brief=True),
    Code.SUSPECTS: _Test(Grade.WRONG, _suspects),
    Code.LOGS_OVERDUE: _Test(Grade.WRONG, _logs_overdue),
    Code.PAUSED: _Test(Grade.ATTENTION, _paused),
    Code.WORKER_DIED: _Test(Grade.ATTENTION, _worker_died),
    Code.WORKER_DRAINS: _Test(Grade.ATTENTION, _worker_drains),
    Code.STANDS_STILL: _Test(Grade.ATTENTION, _stands_still),
    Code.LIMITS_REACHED: _Test(Grade.ATTENTION, _limits_reached),
    Code.WEBHOOKS_FAIL: _Test(Grade.ATTENTION, _webhooks_fail),
}


def _waits(number: int, thing: str, of: str = "", *, still: bool = False) -> str:
    """`1 response of m waits`, `2 responses still wait`."""
    return f"{count_of(number, thing)}{of} {'still ' if still else ''}{'waits' if number == 1 else 'wait'}"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _why(reason: str | None) -> str:
    return f'because of "{reason}"' if reason else "without a reason"
