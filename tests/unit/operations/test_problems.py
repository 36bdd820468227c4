"""What is wrong with a deployment: each problem, without a database."""

from __future__ import annotations

from typing import Any

import pytest

from app.operations.problems import Problem, ProblemCode, in_both, problems
from app.operations.summary import ModelSummary, summaries
from app.operations.workers import seen
from app.scheduling.decisions import QueueState
from app.scheduling.loads import Load
from app.store.layout import LAYOUT
from app.store.operations.casualties import Suspect
from app.store.queue.fleet import Begun, FleetFacts, Flow
from app.store.queue.pace import Pace
from app.store.queue.signs import Signs
from app.store.queue.worker_rows import WorkerRow
from tests.unit.operations.cases import BACKGROUND, NOW, QUEUE, worker

WAITING = Flow(QUEUE, "red", BACKGROUND, 5, 60.0)


def begun(state: str, count: int = 1, *, in_line: int = 0, crashed: int = 0) -> Begun:
    return Begun(QUEUE, BACKGROUND, state, count, in_line, crashed, 30.0)


def summary(
    *workers: WorkerRow,
    flows: Any = (),
    begun: Any = (),
    taken: int = 8,
    models: Any = None,
    pauses: Any = (),
    paces: Any = (),
    in_files: Any = (),
) -> ModelSummary:
    facts = FleetFacts([], flows, in_files, begun, 0, frozenset(pauses), 0.0)
    loads = [Load(each.name, each.slots, answers=taken) for each in workers if each.slots]
    (found,) = summaries(
        facts,
        workers,
        paces,
        {QUEUE: QueueState(loads, bool(flows))},
        {QUEUE: "m"} if models is None else models,
        LAYOUT,
    )
    return found


def codes(*models: ModelSummary, workers: Any = (), signs: Signs | None = None, redis: bool = True) -> list[str]:
    return [each.code for each in problems(models, workers, signs or Signs(), redis_answers=redis)]


def test_nothing_is_wrong_with_a_busy_deployment() -> None:
    assert codes(summary(worker(), flows=[WAITING], begun=[begun("running", 8)])) == []


@pytest.mark.parametrize(
    ("code", "of"),
    [
        (ProblemCode.NO_WORKER, summary()),
        (ProblemCode.NO_WORKER, summary(worker(is_absent=True), flows=[WAITING])),
        (ProblemCode.NO_WORKER, summary(flows=[WAITING], models={})),
        (ProblemCode.DRAINING, summary(worker(slots=0))),
        (ProblemCode.DRAINING, summary(worker(draining_since=NOW))),
        (ProblemCode.OLDER_WORKERS, summary(worker(layout=LAYOUT - 1))),
        (ProblemCode.RELEASED, summary(worker(), begun=[begun("released")])),
        (ProblemCode.NOT_DISPATCHED, summary(worker(), flows=[WAITING], taken=2)),
        (ProblemCode.SUSPECTS, summary(worker(), begun=[begun("running", 2, crashed=1)])),
    ],
)
def test_what_is_wrong_with_a_model_is_told(code: ProblemCode, of: ModelSummary) -> None:
    assert codes(of) == [code]


def test_what_is_wrong_with_services_and_maintenance_is_told() -> None:
    assert codes(redis=False) == [ProblemCode.REDIS_AWAY]
    assert codes(signs=Signs(usage_late_seconds=61)) == [ProblemCode.MAINTENANCE_AWAY]
    assert codes(signs=Signs(deadline_late_seconds=61)) == [ProblemCode.MAINTENANCE_AWAY]
    assert codes(signs=Signs(log_late_seconds=3601)) == [ProblemCode.LOGS_OVERDUE]
    assert codes(workers=[worker(lease_seconds=-61)]) == [ProblemCode.LOST_WORKERS]
    assert codes(workers=[worker(lease_seconds=-1)]) == []


def test_a_brief_problem_counts_if_both_looks_find_it() -> None:
    def problem(code: ProblemCode, model: str, *, is_brief: bool) -> Problem:
        return Problem(code, "", "", model, is_brief)

    brief = problem(ProblemCode.RELEASED, "m", is_brief=True)
    other = problem(ProblemCode.RELEASED, "n", is_brief=True)
    lasting = problem(ProblemCode.NO_WORKER, "m", is_brief=False)
    assert in_both([brief], [brief]) == [brief]
    assert in_both([brief], [other]) == []
    assert in_both([brief], [lasting]) == [lasting]


@pytest.mark.parametrize(
    ("has", "shown"),
    [
        ({"running": 9}, (8, 1)),
        ({"running": 8}, (8, 0)),
        ({"running": 11, "in_tools": 2}, (8, 1)),
        ({"running": 2, "in_tools": 3}, (0, 0)),
        ({"running": 3, "slots": 0}, (3, 0)),
    ],
)
def test_no_worker_has_more_in_its_slots_than_it_has_slots(has: dict[str, int], shown: tuple[int, int]) -> None:
    found = worker(**has)
    assert (found.in_slots, found.ahead) == shown


def test_a_summary_counts_each_response_once() -> None:
    found = summary(
        worker(),
        worker("w2", slots=0),
        worker("w3", lease_seconds=-1),
        flows=[WAITING],
        begun=[begun("running", 6), begun("sent", 2), begun("yielded", 3, in_line=2), begun("released", 1)],
    )
    assert (found.waiting, found.sent, found.running, found.released) == (5, 3, 6, 1)
    assert found.workers == {"ready": 1, "draining": 1, "drained": 0, "absent": 0, "lost": 1}
    assert (found.slots, found.oldest_waiting_seconds, found.empty_in_seconds) == (8, 60.0, None)


def test_a_suspect_that_waits_for_a_worker_of_its_own_is_not_left_behind() -> None:
    (only,) = problems(
        [summary(worker(), begun=[begun("released", crashed=1)])],
        [worker()],
        Signs(),
        [Suspect(QUEUE, "resp_1", 2)],
        redis_answers=True,
    )
    assert only.code is ProblemCode.SUSPECTS
    assert "1 response of m " in only.text and "(resp_1, 2 crashes)" in only.text
    assert "`longhaul responses cancel resp_1 --reason" in only.advice


def test_rates_are_means_of_the_longest_time_of_a_worker() -> None:
    paces = [Pace(QUEUE, "w1", 90, 9000.0, 60.0), Pace(QUEUE, "w2", 30, 3000.0, 20.0)]
    found = summary(worker(), worker("w2"), flows=[WAITING], paces=paces)
    assert (found.ended_per_second, found.tokens_per_second, found.pace_seconds) == (2.0, 200.0, 60.0)
    assert found.empty_in_seconds == 2.5
    workers = {each.row.name: (each.tokens_per_second, each.pace_seconds) for each in seen([worker("w2")], paces)}
    assert workers == {"w2": (150.0, 20.0)}


def test_what_is_paused_or_has_no_worker_is_never_empty() -> None:
    paces = [Pace(QUEUE, "w1", 60, 0.0, 60.0)]
    assert summary(worker(), flows=[WAITING], paces=paces, pauses={(QUEUE, None)}).empty_in_seconds is None
    assert summary(worker(), flows=[WAITING], paces=paces, pauses={(QUEUE, "blue")}).empty_in_seconds == 5.0
    assert summary(worker(slots=0), flows=[WAITING], paces=paces).empty_in_seconds is None
    assert summary(worker()).empty_in_seconds == 0.0
