"""What the arguments of `python -m tests.faults` make of the plan."""

from __future__ import annotations

from tests.faults.__main__ import WHOLE, plan_of


def test_fewer_faults_come_with_fewer_responses() -> None:
    assert plan_of(["--faults", "20"])[0].responses == 40
    assert plan_of(["--faults", "20", "--responses", "7"])[0].responses == 7
    assert plan_of([])[0] == WHOLE
