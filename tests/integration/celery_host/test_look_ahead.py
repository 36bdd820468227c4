"""A worker whose engine has four slots, and many short responses: does each slot find the next response waiting?"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.celery_bench import Bench

SLOTS = 4
RESPONSES = 120


def ends(bench: Bench) -> list[str]:
    """`fed` or `hungry` for each response that held a slot, in order."""
    words = (line.split()[0] for line in bench.log)
    return [word for word in words if word in ("fed", "hungry")]


@pytest.mark.parametrize(("concurrency", "hungry"), [(256, range(RESPONSES // 2)), (SLOTS - 1, range(100, 121))])
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
