"""The bench of webhooks at its smallest: numbers come out, and a missed target is named."""

from __future__ import annotations

import pytest

from tests.bench.told import ALONE, BESIDE, Scene, Sizes, measure, table
from tests.support.services import open_folder

pytestmark = pytest.mark.long


def test_times_are_medians_over_rounds_and_a_delay_is_that_of_each_round() -> None:
    alone = Scene(ALONE, [99.0, 101.0, 100.0], [[10.0, 20.0], [10.0, 30.0], [10.0, 900.0]])
    beside = Scene(BESIDE, [100.0] * 3, [[10.0, 22.0], [10.0, 90.0], [10.0, 900.0]])
    lines = table(alone, beside).splitlines()
    assert lines[2:4] == [f"| {ALONE} | 100 | 10 | 30 | 30 |", f"| {BESIDE} | 100 | 10 | 90 | 90 |"]
    assert [line.rpartition(": ")[2] for line in lines[5:]] == ["met", "met", "met"]
    assert "x 1.10 (1.00 to 3.00)" in lines[-1]
    slow = Scene(BESIDE, [100.0] * 3, [[10.0, 2000.0]] * 3)
    assert table(alone, slow).endswith("MISSED")


async def test_every_end_is_timed_alone_and_beside_a_dead_endpoint() -> None:
    said: list[str] = []
    with open_folder() as folder:
        result = await measure(folder, Sizes(rate=20.0, seconds=1.0, rounds=1), said.append)
    rows = result.splitlines()[2:4]
    assert [row.split(" | ")[0] for row in rows] == [f"| {ALONE}", f"| {BESIDE}"] and len(said) == 1
    assert all(float(cell) > 0 for row in rows for cell in row.strip("| ").split(" | ")[1:])
