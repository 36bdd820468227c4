"""The prices that the model of a fleet is fed with can be measured, and it adds them up."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from config.settings import Settings, variable_of
from tests.bench import fleet, page
from tests.bench.fleet.costs import Costs, Line
from tests.bench.fleet.model import REMEDIES, Fleet, Part, bottleneck, capacity, demand

pytestmark = pytest.mark.long

_FREE: dict[str, Any] = {each.name: Line(0.0, 0.0) if "Line" in str(each.type) else 0.0 for each in fields(Costs)}
NOTHING = Costs(**_FREE)
"""Where nothing has a price."""
PLAIN = Fleet(workers=10, streams=10, rate=10.0, tokens=100, readers=1.0, polls=0.0, pool=1, api=1, connections=1000)
"""1,000 chunks, 100 commits and 10 requests a second."""


def test_a_line_goes_through_points_that_are_on_one() -> None:
    line = Line.through([(1, 12.0), (8, 26.0), (64, 138.0)])
    assert (line.fixed, line.each) == (pytest.approx(10.0), pytest.approx(2.0))


def test_what_a_fleet_asks_for_is_the_sum_of_its_prices() -> None:
    costs = replace(NOTHING, commit=Line(1e-3, 1e-4), commit_wal=Line(100.0, 10.0), claim=1e-2, write=1e-4)
    wanted = demand(PLAIN, costs)
    assert wanted[Part.POSTGRES] == pytest.approx(100 * 1e-3 + 1000 * 1e-4 + 10 * 1e-2)
    assert wanted[Part.WAL] == pytest.approx(100 * 100 + 1000 * 10)
    assert wanted[Part.API] == pytest.approx(1000 * 1e-4)
    most = capacity(PLAIN, costs)
    assert (
        bottleneck(replace(PLAIN, workers=most), costs)[1]
        <= 0.7
        < bottleneck(replace(PLAIN, workers=most + 1), costs)[1]
    )


def test_a_remedy_names_only_settings_that_there_are() -> None:
    known = {variable_of(name) for name in Settings.model_fields}
    words = [word for what, _ in REMEDIES for word in what.split()]
    assert {word.split("=")[0].strip("`") for word in words if "LONGHAUL_" in word} <= known


async def test_prices_are_measured_and_written_down(tmp_path: Path) -> None:
    results = await fleet.measure(lambda _: None, size=0.03, build=tmp_path)
    costs = Costs.of(results[fleet.PRICES].rows)
    assert costs.commit.fixed > 0
    assert costs.post > 0
    for name in (page.PAGE, page.SCALING):
        (tmp_path / name).write_text(f"# {name}\n")
    list(page.write(tmp_path, tmp_path))
    text = (tmp_path / page.SCALING).read_text()
    for name in (*results, "fleet-model", "fleet-remedies"):
        assert f"<!-- bench:{name} -->" in text
