"""Which batches a process carries on."""

from __future__ import annotations

from app.batches.expander import AHEAD_OF_SLOT, LINES_AHEAD, STEP_LINES, room_of
from app.batches.progress import BATCHES_AT_ONCE, PROJECT_BATCHES_AT_ONCE, next_batches
from app.protocol.status import BatchStatus
from app.store.batches.unfinished import LinesLeft, UnfinishedBatch


def _batch(name: str, project: str = "a", status: BatchStatus = BatchStatus.IN_PROGRESS) -> UnfinishedBatch:
    return UnfinishedBatch(name, project, status)


def _names(batches: list[UnfinishedBatch]) -> list[str]:
    return [batch.id for batch in batches]


def test_the_oldest_begin_and_a_project_has_a_part_of_the_room() -> None:
    waiting = [_batch(f"a{number}") for number in range(10)] + [_batch(f"b{number}", "b") for number in range(10)]
    assert _names(next_batches(waiting, [], {})) == ["a0", "a1", "b0", "b1"]
    assert PROJECT_BATCHES_AT_ONCE * 2 == BATCHES_AT_ONCE


def test_a_batch_is_carried_on_by_one_task_from_status_to_status() -> None:
    assert next_batches([_batch("a0")], [_batch("a0", status=BatchStatus.VALIDATING)], {}) == []


def test_batches_take_turns() -> None:
    waiting = [_batch(f"a{number}") for number in range(5)]
    begun, turns = [], dict[str, int]()
    for look in range(1, 5):
        chosen = _names(next_batches(waiting, [], turns))
        turns |= dict.fromkeys(chosen, look)
        begun.append(chosen)
    assert begun == [["a0", "a1"], ["a2", "a3"], ["a4", "a0"], ["a1", "a2"]]


def test_projects_take_turns_whose_batches_give_their_places_up() -> None:
    """Two with many large batches, and a third with a small one."""
    waiting = [_batch(f"{project}{number}", project) for project in "ab" for number in range(8)] + [_batch("c0", "c")]
    turns: dict[str, int] = {}
    begun = next_batches(waiting, [], turns)
    for batch in begun:
        turns |= {batch.id: 1, batch.project: 1}
    assert _names(next_batches(waiting, [], turns))[0] == "c0"


def test_files_that_are_checked_in_part_come_first_in_their_project() -> None:
    waiting = [_batch(f"a{number}", status=BatchStatus.VALIDATING) for number in range(8)]
    turns = {"a": 2, "a5": 2, "a6": 2}
    assert _names(next_batches(waiting, [], turns, begun=["a5", "a6"])) == ["a5", "a6"]


def test_a_cancel_waits_for_no_room_and_for_no_expansion_of_its_batch() -> None:
    running = [_batch(f"{project}{number}", project) for project in "ab" for number in range(PROJECT_BATCHES_AT_ONCE)]
    cancelled = _batch("a0", status=BatchStatus.CANCELLING)
    assert next_batches([cancelled, _batch("c0", "c")], running, {}) == [cancelled]


def test_cancels_of_one_project_are_bounded_as_other_batches_are() -> None:
    waiting = [_batch(f"a{number}", status=BatchStatus.CANCELLING) for number in range(5)]
    assert _names(next_batches(waiting, [], {})) == ["a0", "a1"]


def test_lines_become_responses_in_whole_steps_as_room_appears() -> None:
    most = LINES_AHEAD + AHEAD_OF_SLOT * 32
    assert room_of(LinesLeft(in_file=50_000, begun=0, slots=32)) == most
    assert room_of(LinesLeft(in_file=50_000, begun=most - STEP_LINES, slots=32)) == STEP_LINES
    assert room_of(LinesLeft(in_file=50_000, begun=most - STEP_LINES + 1, slots=32)) == 0
    assert room_of(LinesLeft(in_file=50_000, begun=most + 1, slots=32)) == 0, "workers have gone"
    assert room_of(LinesLeft(in_file=5, begun=most - 5, slots=32)) == 5, "the last ones"
    assert room_of(LinesLeft(in_file=50_000, begun=50_000, slots=None)) == 50_000, "of several models"
    assert room_of(LinesLeft()) == 0
