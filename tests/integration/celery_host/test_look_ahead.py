"""A worker whose engine has four slots, and many short responses: does each slot find the next response waiting?"""

from __future__ import annotations

from typing import Any

import pytest

from app.queue.message import Priority
from tests.support.celery_bench import Bench
from tests.support.waiting import until_sync

SLOTS = 4
RESPONSES = 120


def ends(bench: Bench) -> list[str]:
    """`fed` or `hungry` for each response that held a slot, in order."""
    words = (line.split()[0] for line in bench.log)
    return [word for word in words if word in ("fed", "hungry")]


@pytest.mark.parametrize(("concurrency", "hungry"), [(256, range(RESPONSES // 6)), (SLOTS - 1, range(100, 121))])
def test_a_slot_that_frees_finds_the_next_response_in_the_engine(
    start: Any, bench: Bench, concurrency: int, hungry: range
) -> None:
    """With fewer responses than slots there is no look-ahead, and so every slot that frees stays empty for a while."""
    start(concurrency=concurrency, PRETEND_SLOTS=str(SLOTS)).ready()
    ids = [f"slot-{number}" for number in range(RESPONSES)]
    bench.send(*ids)
    bench.wait_until_ended(RESPONSES)
    assert len(ends(bench)) == RESPONSES
    assert ends(bench).count("hungry") in hungry


def test_an_urgent_response_waits_for_those_that_were_taken_ahead_and_for_no_others(start: Any, bench: Bench) -> None:
    start(PRETEND_SLOTS=str(SLOTS)).ready()
    bench.send(*(f"slot-{number}" for number in range(RESPONSES)), priority=Priority.BACKGROUND)
    # The first ones end together and may leave a slot empty: how many are taken ahead follows from how many ended.
    until_sync(lambda: "fed" in ends(bench), 20.0, lambda: f"a slot that was fed in {bench.log}")
    bench.send("ok-urgent", priority=Priority.URGENT)
    started = len(bench.log)
    bench.wait_for_log("end ok-urgent")
    before = [line for line in bench.log[started : bench.log.index("start ok-urgent")] if line.startswith("start")]
    assert len(before) <= 2 * SLOTS
