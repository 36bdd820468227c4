"""What is wrong with the deployment, and what to do about it: pure, from what the rows say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.operations.summary import ModelSummary
from app.operations.words import count_of, some_of, span
from app.operations.workers import WorkerState, state_of
from app.store.operations.casualties import Suspect
from app.store.queue.signs import Signs
from app.store.queue.worker_rows import WorkerRow

LONG_LOST_SECONDS = 60.0
"""Maintenance removes a worker that is dead within a lease and a half of its last heartbeat, twice that by default."""
LATE_SECONDS = 60.0
"""Of what maintenance does every ten seconds."""
LATE_LOG_SECONDS = 3600.0
"""Of logs, of which there may be many at once."""
IDLE_PART = 4
"""One of so many slots free while responses wait: a dispatch would have filled them."""


class ProblemCode(StrEnum):
    """What is wrong, in a word that programs may rely on."""

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


@dataclass(frozen=True, slots=True)
class Problem:
    code: ProblemCode
    text: str
    advice: str
    model: str | None = None
    """None: it is not about one model."""
    is_brief: bool = False
    """It may be so for a moment while all is well: it counts if a second look finds it again."""

    @property
    def key(self) -> tuple[str, str | None]:
        return self.code, self.model


SCHEMA_PROBLEM = Problem(
    ProblemCode.SCHEMA,
    "The database's schema is not this version's.",
    "Run `longhaul migrate` by the newest version, or start this one's processes against the right database.",
)


def problems(
    models: Sequence[ModelSummary],
    workers: Sequence[WorkerRow],
    signs: Signs,
    suspects: Sequence[Suspect] = (),
    *,
    redis_answers: bool,
) -> list[Problem]:
    """All that is wrong, the worst first. `suspects` are named."""
    found = [*_of_services(signs, redis_answers=redis_answers), *_of_workers(workers)]
    for model in models:
        found += _of_model(model, [each for each in suspects if each.queue == model.queue])
    order = list(ProblemCode)
    return sorted(found, key=lambda problem: order.index(problem.code))


def in_both(first: Sequence[Problem], second: Sequence[Problem]) -> list[Problem]:
    """What is wrong at the second look, but for brief problems that only one of the looks found."""
    known = {problem.key for problem in first}
    return [problem for problem in second if not problem.is_brief or problem.key in known]


def _of_services(signs: Signs, *, redis_answers: bool) -> Iterator[Problem]:
    if not redis_answers:
        yield Problem(
            ProblemCode.REDIS_AWAY,
            "Redis does not answer: what waits is not sent, and streams have to poll Postgres.",
            "See that it runs and that REDIS_URL is right. Nothing is lost; the queue goes on when it is back.",
        )
    late = max(signs.usage_late_seconds, signs.deadline_late_seconds)
    if late > LATE_SECONDS:
        what = "deadlines" if signs.deadline_late_seconds > LATE_SECONDS else "the ledger"
        yield Problem(
            ProblemCode.MAINTENANCE_AWAY,
            f"Maintenance is {span(late)} late with {what}: it does not run, or cannot reach Postgres.",
            "Start `longhaul maintenance`, or see its log.",
        )
    if signs.log_late_seconds > LATE_LOG_SECONDS:
        yield Problem(
            ProblemCode.LOGS_OVERDUE,
            f"Logs are {span(signs.log_late_seconds)} beyond their retention and are not deleted.",
            "Maintenance does not run, or does not keep up: see its log.",
        )


def _of_workers(workers: Sequence[WorkerRow]) -> Iterator[Problem]:
    lost = [each for each in workers if state_of(each) is WorkerState.LOST and -each.lease_seconds > LONG_LOST_SECONDS]
    if lost:
        names = some_of([each.name for each in lost], 5)
        yield Problem(
            ProblemCode.LOST_WORKERS,
            f"{count_of(len(lost), 'worker')} lost the lease and were not removed ({names}).",
            "Maintenance does not run: start it. It gives their responses to other workers.",
        )


def _of_model(model: ModelSummary, suspects: Sequence[Suspect]) -> Iterator[Problem]:
    name, work = model.model, model.waiting + model.released + model.sent
    waits = f"{count_of(work, 'response')} of {name} {_waits(work)}"
    draining = model.workers[WorkerState.DRAINING] + model.workers[WorkerState.DRAINED]
    if not model.ready and draining:
        yield Problem(
            ProblemCode.DRAINING,
            f"No worker of {name} takes responses: all that live ({draining}) drain.",
            "`longhaul workers` shows which an operator drained; the others stop, or have no connection to Redis.",
            name,
        )
    elif not model.ready and (model.in_models_file or work):
        yield Problem(
            ProblemCode.NO_WORKER,
            f"No worker of {name} lives" + (f", and {waits}." if work else "."),
            f"Start a worker of {name}, or see the log of the one that should run.",
            name,
        )
    if model.older_workers:
        yield Problem(
            ProblemCode.OLDER_WORKERS,
            f"{count_of(model.older_workers, 'worker')} of {name} {_is(model.older_workers)} of an older version.",
            "Upgrade: older workers leave to newer ones what they cannot read. `longhaul workers --json` has versions.",
            name,
        )
    released = model.released - model.released_suspects
    if released and model.ready:
        yield Problem(
            ProblemCode.RELEASED,
            f"{count_of(released, 'response')} of {name} {_waits(released)} for another worker after the last one died"
            f" or handed over, although {count_of(model.ready, 'worker')} {_is(model.ready)} ready.",
            "Maintenance sends them on within a second: `longhaul doctor` says whether it runs.",
            name,
            is_brief=True,
        )
    free = model.free_slots
    if model.is_held_up and model.ready and free and free * IDLE_PART >= model.slots:
        yield Problem(
            ProblemCode.NOT_DISPATCHED,
            f"{count_of(model.waiting, 'response')} of {name} {_waits(model.waiting)} while {count_of(free, 'slot')}"
            f" {_is(free)} free.",
            "Maintenance, workers and API all dispatch: `longhaul doctor` says whether they reach Postgres and Redis.",
            name,
            is_brief=True,
        )
    if model.suspects:
        yield Problem(
            ProblemCode.SUSPECTS,
            f"{count_of(model.suspects, 'response')} of {name} may have killed {_its(model.suspects)} before making"
            f" progress{_named(suspects)}.",
            "Suspects run alone until they make progress. One that crashes workers again:"
            f' `longhaul responses cancel {suspects[0].id if suspects else "ID"} --reason "it crashes workers"`.',
            name,
        )


def _waits(number: int) -> str:
    return "waits" if number == 1 else "wait"


def _its(number: int) -> str:
    return "its worker" if number == 1 else "their workers"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _named(suspects: Sequence[Suspect]) -> str:
    named = [f"{each.id}, {count_of(each.crashes, 'crash', 'crashes')}" for each in suspects[:3]]
    return f" ({'; '.join(named)})" if named else ""
