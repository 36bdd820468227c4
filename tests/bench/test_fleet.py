"""The model of a fleet adds up, and what it is fed with can be measured."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config.settings import Settings, load_settings, variable_of
from tests.bench import fleet, page
from tests.bench.fleet import simulation
from tests.bench.fleet.costs import Costs, Line
from tests.bench.fleet.model import Fleet, Part, bottleneck, capacity, demand, event_seconds, shares
from tests.bench.fleet.remedies import REMEDIES, ladder
from tests.bench.fleet.simulation import Shape
from tests.bench.fleet.worker import Squad
from tests.bench.scale.setup import MeasurementFailed

pytestmark = pytest.mark.long

FREE = Line(0.0, 0.0)
_FREE: dict[str, Any] = {each.name: FREE if "Line" in str(each.type) else 0.0 for each in fields(Costs)}
NOTHING = Costs(**_FREE)
"""Where nothing has a price; tests give one to what they are about."""
PLAIN = Fleet(workers=10, streams=10, rate=10.0, tokens=100, readers=1.0, polls=0.0, pool=1, api=1, connections=1000)
"""1,000 chunks, 100 commits and 10 requests a second."""


# -- prices ------------------------------------------------------------------------------------------------------


def test_a_line_goes_through_points_that_are_on_one() -> None:
    line = Line.through([(1, 12.0), (8, 26.0), (64, 138.0)])
    assert line.at(0) == pytest.approx(10.0)
    assert line.each == pytest.approx(2.0)


def test_a_price_is_never_below_zero() -> None:
    assert Line.through([(1, 5.0), (2, 4.0)]).each == 0.0
    assert Line.through([(1, 1.0), (2, 3.0)]).fixed == 0.0
    with pytest.raises(ValueError, match="two counts"):
        Line.through([(1, 5.0), (1, 4.0)])


def test_prices_are_kept_as_rows() -> None:
    costs = replace(NOTHING, commit=Line(1e-4, 1e-5), commit_wal=Line(50.0, 300.0), claim=2e-4)
    rows = {row["name"]: row for row in costs.rows()}
    assert (rows["commit"]["price"], rows["commit"]["each"], rows["commit"]["unit"]) == (100.0, 10.0, "µs")
    assert (rows["commit_wal"]["price"], rows["commit_wal"]["unit"]) == (50.0, "B")
    assert Costs.of(costs.rows()).claim == pytest.approx(2e-4)
    with pytest.raises(ValueError, match="'claim'"):
        Costs.of([row for row in costs.rows() if row["name"] != "claim"])


# -- the model ---------------------------------------------------------------------------------------------------


def test_an_event_is_a_row_and_a_step_is_a_commit() -> None:
    assert (PLAIN.chunks, PLAIN.commits, PLAIN.requests) == (1000, 100, 10)
    costs = replace(NOTHING, commit=Line(1e-3, 1e-4), commit_wal=Line(100.0, 10.0), claim=1e-2)
    wanted = demand(PLAIN, costs)
    assert wanted[Part.POSTGRES] == pytest.approx(100 * 1e-3 + 1000 * 1e-4 + 10 * 1e-2)
    assert wanted[Part.WAL] == pytest.approx(100 * 100 + 1000 * 10)


def test_larger_events_are_fewer_rows_of_as_many_tokens() -> None:
    rare = replace(PLAIN, interval=1.0)
    assert (rare.chunks, rare.commits, rare.requests) == (100, 10, 10)
    assert replace(PLAIN, interval=0.001).chunks == PLAIN.chunks  # no event without a token
    by_the_beat = replace(PLAIN, events=50.0)  # ten streams: a tenth of a second at most
    assert (by_the_beat.chunks, by_the_beat.commits) == (1000, 100)
    fast = replace(PLAIN, rate=100.0, events=200.0)
    assert (fast.chunks, fast.commits) == (pytest.approx(2000), pytest.approx(200))


def test_an_api_process_receives_a_stream_once_however_many_read_it_there() -> None:
    assert replace(PLAIN, api=1, readers=50).receiving == 1
    assert replace(PLAIN, api=8, readers=0).receiving == 0
    assert replace(PLAIN, api=1000, readers=2).receiving == pytest.approx(2, rel=0.01)
    costs = replace(NOTHING, receive=1e-5, write=1e-4, publish=Line(1e-4, 1e-6), deliver=1e-5)
    wanted = demand(replace(PLAIN, readers=3), costs)
    assert wanted[Part.API] == pytest.approx(1000 * (1e-5 + 3 * 1e-4))
    assert wanted[Part.BROKER] == pytest.approx(100 * 1e-4 + 1000 * (1e-6 + 1e-5))


def test_pubsub_servers_of_their_own_take_load_from_the_broker() -> None:
    costs = replace(NOTHING, publish=Line(0.0, 1e-4), send=1e-2)
    one, many = (shares(replace(PLAIN, pubsub_servers=number), costs) for number in (0, 4))
    assert [one[Part.BROKER], one[Part.PUBSUB]] == pytest.approx([0.2, 0.0])
    assert [many[Part.BROKER], many[Part.PUBSUB]] == pytest.approx([0.1, 0.025])


def test_a_statement_that_looks_at_bystanders_grows_with_the_square_of_the_fleet() -> None:
    costs = replace(NOTHING, bystander=1e-6)
    one, ten = (demand(replace(PLAIN, workers=number), costs)[Part.POSTGRES] for number in (10, 100))
    assert ten == pytest.approx(100 * one)


def test_every_server_is_spoken_to_by_every_api_process_and_by_its_own_workers() -> None:
    fleet_of = replace(PLAIN, workers=100, pool=3, api=10, api_pool=3, postgres=4)
    assert demand(fleet_of, NOTHING)[Part.CONNECTIONS] == 100 * (3 + 3) + 4 * (10 * 3 + 4)


def test_capacity_is_the_last_fleet_with_room_everywhere() -> None:
    costs = replace(NOTHING, commit=Line(0.0, 1e-4))
    most = capacity(PLAIN, costs)
    assert bottleneck(replace(PLAIN, workers=most), costs)[1] <= 0.7
    assert bottleneck(replace(PLAIN, workers=most + 1), costs)[1] > 0.7
    assert capacity(PLAIN, replace(NOTHING, looks=Line(1e9, 0.0))) == 0


def test_where_postgres_is_full_events_are_as_rare_as_it_bears() -> None:
    costs = replace(NOTHING, commit=Line(0.0, 1e-3))
    small = replace(PLAIN, cores=1)
    assert event_seconds(small, costs) == pytest.approx(0.1)  # a row each step: just enough
    assert event_seconds(replace(small, workers=50), costs) == pytest.approx(0.5, rel=0.01)
    assert event_seconds(small, replace(NOTHING, create=1.0)) == float("inf")
    # All streams of a worker share a commit, however rare.
    assert event_seconds(replace(small, workers=50), replace(NOTHING, commit=Line(1e-2, 0.0))) == pytest.approx(
        0.5, rel=0.01
    )


def test_no_remedy_makes_a_fleet_smaller() -> None:
    costs = replace(
        NOTHING,
        commit=Line(1e-4, 2e-5),
        commit_wal=Line(100.0, 500.0),
        publish=Line(1e-4, 3e-6),
        deliver=5e-6,
        receive=2e-5,
        write=5e-5,
        tidy=Line(1e-4, 1e-5),
        poll=1e-4,
    )
    most = [capacity(each, costs) for _, each in ladder(Fleet())]
    assert most == sorted(most)
    assert most[-1] > most[0]


def test_a_remedy_that_exists_names_only_settings_that_do() -> None:
    known = {variable_of(name) for name in Settings.model_fields}
    named = {word.split("=")[0].strip("`") for each in REMEDIES for word in each.what.split() if "LONGHAUL_" in word}
    assert named <= known


# -- the whole of it ---------------------------------------------------------------------------------------------


async def test_prices_are_measured_and_a_fleet_is_run_and_written_down(tmp_path: Path) -> None:
    shapes = (Shape(3, 2, 20.0),)
    results = await fleet.measure(lambda _: None, size=0.03, shapes=shapes, build=tmp_path / "build")
    costs = Costs.of(results[fleet.PRICES].rows)
    assert costs.commit.fixed > 0
    assert costs.post > 0
    (run,) = results[fleet.RUN].rows
    assert run["chunks/s"] > 0
    assert run["Postgres cores"] > 0
    docs = tmp_path / "docs"
    docs.mkdir()
    written = list(page.write(tmp_path / "build", docs))
    assert [file.name for file in written if file.suffix == ".md"] == [page.SCALING]
    text = (docs / page.SCALING).read_text()
    for name in (*results, "fleet-model", "fleet-remedies"):
        assert f"<!-- bench:{name} -->" in text


async def test_a_fleet_that_wants_more_connections_than_postgres_has_is_refused() -> None:
    place: Any = None
    with pytest.raises(MeasurementFailed, match="100 workers take up to 500 connections"):
        await simulation.row(place, NOTHING, Shape(100, 4, 2.0))


async def test_a_squad_that_does_not_get_ready_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "PATIENCE", 0.01)
    settings = load_settings(DATABASE_URL="postgresql://nobody@127.0.0.1:9/none", REDIS_URL="redis://127.0.0.1:9/0")
    place: Any = SimpleNamespace(settings=settings)
    with pytest.raises(MeasurementFailed, match="not ready within"):
        async with simulation._squad(place, Squad([["resp_none"]], 1.0, 2)):
            raise AssertionError("no squad is ready here")
