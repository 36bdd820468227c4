"""The harness at its smallest: numbers come out, they are the right ones, and it knows when not to measure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import orjson
import psutil
import pytest

from config.settings import CHECKOUT
from tests.bench import fair, page, path, scale, svg, tables
from tests.bench.client.scan import Scan
from tests.bench.contenders.longhaul import Variant
from tests.bench.contenders.models import scripted
from tests.bench.load import ON_PATHS, Figures, Load, Mode
from tests.bench.measurement import Measured
from tests.bench.metrics import Metric, ratio, spread, value
from tests.bench.numbers import Spread, quantile, ratios
from tests.bench.plan import Cell, Name, Plan
from tests.bench.processes import ForeignEngine, engines, freeze, refuse_foreign_engines, thaw
from tests.bench.profiling import table
from tests.bench.prompts import Prompt
from tests.bench.results import Results, Sample
from tests.bench.rounds import Comparison, rotated
from tests.bench.targets import TARGETS, verdicts
from tests.support.services import open_folder
from tests.support.waiting import until_sync

pytestmark = pytest.mark.long

FRAMES = (
    b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n'
    b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'
    b": keepalive\n\n"
    b'event: response.output_text.delta\ndata: {"delta":"event: response.output_text.delta\\n"}\n\n'
    b'event: response.completed\ndata: {"response":{"status":"completed","usage":{"output_tokens":2}}}\n\n'
    b"data: [DONE]\n\n"
)


def figures(seconds: float, tokens: int, **times: float) -> Figures:
    """Of a client that saw so many tokens, one event each; `times` are medians in milliseconds."""
    quantiles = {name: {"p50": found, "p95": found, "p99": found} for name, found in times.items()}
    return Figures(seconds, 4, 0, [], tokens, 8, tokens, tokens, 100 * tokens, 0.1, False, quantiles)


def results_of(tokens_per_second: dict[str, list[int]], cell: str = "stream 64") -> Results:
    """A sample for each contender's round."""
    samples = [
        Sample(who, cell, number, Measured(figures(1.0, tokens, ttft=1000 / tokens), {"api": 0.5}, 10 * tokens, 0.0))
        for who, rounds in tokens_per_second.items()
        for number, tokens in enumerate(rounds)
    ]
    return Results("run", {"date": "", "commit": "", "cores": 2, "cpu": "", "vllm": ""}, samples=samples)


# -- numbers -----------------------------------------------------------------------------------------------------


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [quantile(values, share) for share in (0.0, 0.2, 0.5, 0.95, 1.0)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert quantile(list(map(float, range(1, 101))), 0.99) == 99.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_a_ratio_is_the_median_of_the_ratios_of_single_rounds() -> None:
    assert ratios({0: 2.0, 1: 30.0, 2: 8.0}, {0: 1.0, 1: 10.0, 3: 1.0}) == [2.0, 3.0]
    results = results_of({Name.LONGHAUL: [200, 30, 120], Name.PEER: [100, 10, 100]})
    assert ratio(results, Name.LONGHAUL, Name.PEER, "stream 64", Metric.TOKENS) == Spread(2.0, 1.2, 3.0, 3)
    assert spread(results, Name.PEER, "stream 64", Metric.TOKENS) == Spread(100.0, 10.0, 100.0, 3)
    assert ratio(results, Name.LONGHAUL, Name.BARE, "stream 64", Metric.TOKENS) is None


def test_a_metric_that_a_sample_does_not_know_is_none() -> None:
    sample = results_of({Name.LONGHAUL: [200]}).samples[0]
    assert value(sample, Metric.CPU) == 2.5
    assert value(sample, Metric.FRAMES) == 100.0
    assert value(sample, Metric.WAL) == 10.0
    assert value(sample, Metric.POST_P99) is None


def test_targets_are_met_or_missed_by_the_median() -> None:
    streams = results_of({Name.LONGHAUL: [120, 140, 150], Name.PEER: [100] * 3})
    slower = results_of({Name.LONGHAUL: [120, 120, 150], Name.PEER: [100] * 3})
    arrived = results_of({Name.LONGHAUL: [80, 90, 95], Name.PEER: [100] * 3}, "arrive 38")
    missed = results_of({Name.LONGHAUL: [80, 70, 50], Name.PEER: [100] * 3}, "arrive 38")
    for found, target, expected in (
        (streams, ("64 streams", Metric.TOKENS), True),
        (slower, ("64 streams", Metric.TOKENS), False),
        (slower, ("2,000 background responses of 64 tokens", Metric.TOKENS), None),
        (arrived, ("streams that arrive at random, 38 a second", Metric.TTFT_P50), True),
        (missed, ("streams that arrive at random, 38 a second", Metric.TTFT_P50), False),
        (streams, ("streams that arrive at random, 38 a second", Metric.TTFT_P50), None),
    ):
        by_says = {(each.target.says, each.target.metric): each.met for each in verdicts({"run": found})}
        assert len(by_says) == len(TARGETS)
        assert by_says[target] is expected


def test_every_target_is_about_a_cell_that_is_measured() -> None:
    measured = {str(cell) for cell in Plan.quick().cells} & {str(cell) for cell in Plan.full().cells}
    assert {target.cell for target in TARGETS if target.results == "run"} <= measured
    assert {target.cell for target in TARGETS if target.results == "path"} <= {
        str(cell) for plan, *_ in path.Sizes().runs() for cell in plan.cells
    }


def test_nobody_is_always_the_first() -> None:
    assert ["".join(rotated("abc", by)) for by in range(4)] == ["abc", "bca", "cab", "abc"]


# -- the client --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 64, len(FRAMES)])
def test_a_stream_is_counted_alike_wherever_it_is_cut(size: int) -> None:
    ticks = iter(range(1000))
    scan = Scan(lambda: float(next(ticks)))
    for start in range(0, len(FRAMES), size):
        scan.feed(FRAMES[start : start + size])
    assert (scan.events, scan.deltas, scan.bytes) == (4, 2, len(FRAMES))
    assert scan.response()["usage"] == {"output_tokens": 2}
    assert scan.first == 0.0


def test_a_stream_without_its_end_is_an_error() -> None:
    scan = Scan()
    scan.feed(FRAMES[: FRAMES.index(b"event: response.completed")])
    with pytest.raises(ValueError, match="without a terminal event"):
        scan.response()


def test_loads_and_figures_travel_as_json() -> None:
    load = Load("http://127.0.0.1:1", Mode.FIRE, 2, 3, {"max_output_tokens": 1}, paths=["/a"])
    assert Load.decode(load.encode()) == load
    seen = figures(1.5, 10, ttft=3.0)
    assert Figures.decode(seen.encode()) == seen


def test_a_client_does_not_outlive_who_started_it() -> None:
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=CHECKOUT
    )
    assert client.stdin and client.stdout
    with client.stdout:
        client.stdin.write(Load("http://127.0.0.1:1", Mode.GET, 1, 1, paths=["/"], realtime=False).encode() + b"\n")
        client.stdin.flush()
        assert client.stdout.readline() == b"ready\n"
        client.stdin.close()
        assert client.wait(30) == os.EX_IOERR


def test_a_cell_is_read_as_it_is_written() -> None:
    for cell in (Cell(Mode.STREAM, 64), Cell(Mode.BACKGROUND_POLL, 1, Prompt.LONG)):
        assert Cell.parse(str(cell)) == cell


# -- processes ---------------------------------------------------------------------------------------------------


@contextmanager
def process(*argv: str, title: str = sys.executable) -> Iterator[psutil.Process]:
    started = subprocess.Popen([title, *argv], executable=sys.executable)
    try:
        yield psutil.Process(started.pid)
    finally:
        started.kill()
        started.wait()


def test_it_refuses_to_measure_beside_a_foreign_engine() -> None:
    with process("-c", "import time; time.sleep(600)", title="VLLM::EngineCore") as engine:
        until_sync(lambda: engine.pid in engines())
        with pytest.raises(ForeignEngine, match=rf"\b{engine.pid}\b"):
            refuse_foreign_engines()
        refuse_foreign_engines(engines())
        said = subprocess.run(
            [sys.executable, "-m", "tests.bench", "--only", "nobody"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert said.returncode == 1
    assert said.stdout.startswith("bench: an engine that is not ours is alive (pid ")
    assert len(said.stdout.splitlines()) == 1
    assert "Traceback" not in said.stderr


def test_what_is_frozen_takes_no_core() -> None:
    with process("-c", "while True: pass") as spinning:
        freeze([spinning.pid])
        until_sync(lambda: spinning.status() == psutil.STATUS_STOPPED)
        used = spinning.cpu_times().user
        os.sched_yield()
        assert spinning.cpu_times().user == used
        thaw([spinning.pid])
        until_sync(lambda: spinning.cpu_times().user > used)


# -- what is written ---------------------------------------------------------------------------------------------


def test_tables_and_plots_go_between_the_marks_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    results = replace(
        results_of({Name.LONGHAUL: [120], Name.PEER: [100], Name.BARE: [130]}),
        folder=tmp_path / "build",
        disturbed=True,
    )
    results.save()
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / page.PAGE).write_text("# Mine\n\n<!-- bench:run -->\nold\n<!-- /bench:run -->\n\nMine too.\n")
    first = {file: file.read_bytes() for file in page.write(tmp_path / "build", docs)}
    text = (docs / page.PAGE).read_text()
    assert text.startswith("# Mine\n")
    assert "Mine too." in text
    assert "old" not in text
    assert "| stream 64 | longhaul | 120 | 1.2 |" in text
    assert "A foreign engine was running" in text
    assert {file: file.read_bytes() for file in page.write(tmp_path / "build", docs)} == first
    for file in docs.glob("img/*.svg"):
        ElementTree.fromstring(file.read_text())


def test_what_the_fair_queue_s_bench_found_is_written_with_its_plots(tmp_path: Path) -> None:
    about = {"date": "", "commit": "", "cores": 2, "cpu": "", "vllm": ""}
    found = Results(fair.NAME, {**about, "tokens": [(0, 0, 0), (8, 300, 100)]}, folder=tmp_path)
    found.rows = [{"what": "share of flex", "of": "", "measured": "2.1%", "required": "at least 2 %", "met": "yes"}]
    found.save()
    rows = [{"queued": size, "Redis MiB": 1.5, "Flower MiB": 70.0, "dispatch ms": 5.0} for size in (10, 1000)]
    Results(fair.SIZES, about, rows=rows, folder=tmp_path).save()
    list(page.write(tmp_path, tmp_path))
    text = (tmp_path / page.PAGE).read_text()
    assert "| share of flex |  | 2.1% | at least 2 % | yes |" in text and "| 1,000 | 1.5 | 70 | 5 |" in text
    assert {file.stem for file in tmp_path.glob("img/*.svg")} == {"fair-shares", "fair-memory", "fair-dispatch"}


def test_a_plot_names_no_host_but_those_of_its_format() -> None:
    series = {"a <b>": [(1, 2.0), (1000, 3.0)], "flat": [(1, 7.0)]}
    for drawn in (
        svg.lines("Lines & points", "x", "y", series, logarithmic=True),
        svg.lines("From zero", "x", "y", series),
        svg.bars("Bars", "y", ["one", "two"], {"a": [1.0, None], "b": [0.0, 3000.0]}),
        svg.shares("Shares", {"a": 0.2, "b": 3.0}),
    ):
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
        assert drawn.count("http") == drawn.count("http://www.w3.org/")


def test_axes_have_round_ticks_up_to_what_is_drawn() -> None:
    assert [svg.round_step(least) for least in (0.11, 1.0, 3.0, 70.0)] == [0.2, 1.0, 5.0, 100.0]
    assert svg.Scale(0.0, 100.0, 0, 1).ticks() == [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    assert svg.Scale(1.0, 1000.0, 0, 1, logarithmic=True).ticks() == [1.0, 10.0, 100.0, 1000.0]
    assert [svg.short(value) for value in (1e6, 2500.0, 40.0, 0.02)] == ["1M", "2.5k", "40", "0.02"]


def test_a_profile_is_a_table_of_self_time() -> None:
    text = table("main (a.py:1);work (b.py:2) 3\nmain (a.py:1);work (b.py:9) 1\nmain (a.py:4) 1\n")
    assert text.splitlines()[:4] == [
        "5 samples",
        "  self  total  function",
        " 80.0 %  80.0 %  work (b.py)",
        " 20.0 % 100.0 %  main (a.py)",
    ]


# -- the whole of it ---------------------------------------------------------------------------------------------


async def test_two_longhauls_are_compared_in_every_mode(tmp_path: Path) -> None:
    modes = tuple(mode for mode in Mode if mode not in ON_PATHS)
    cells = [Cell(mode, 2, Prompt.SCRIPT, mode.value) for mode in modes]
    plan = Plan(cells, rounds=1, length=0.01, tokens=8, busy=2, realtime=False)
    results = Results.begin("run", tmp_path)
    said: list[str] = []
    with open_folder() as folder:
        variants = {Name.LONGHAUL.value: Variant(), "again": Variant(settings={"LONGHAUL_LOG_LEVEL": "WARNING"})}
        contenders = path.contenders(folder, scripted(), variants)
        # Other tests' engines may be alive: nothing is timed here.
        await Comparison(plan, results, said.append, allow_foreign_engine=True).run(contenders)
    assert [(sample.contender, sample.cell) for sample in results.samples[:2]] == [
        ("longhaul", "stream"),
        ("again", "stream"),
    ]
    assert {(sample.contender, sample.cell) for sample in results.samples} == {
        (who, mode.value) for who in variants for mode in modes
    }
    for sample in results.samples:
        assert sample.measured.figures.errors == 0
        assert sample.measured.figures.ok >= 2
        assert {"api", "worker", "maintenance", "postgres", "redis"} <= set(sample.measured.cpu)
        assert sample.measured.wal_bytes
        assert value(sample, Metric.RESPONSES)
    assert any("in time" in line for line in tables.arrivals(results))
    streamed = results.of("again", "stream")[0].measured.figures
    assert streamed.tokens == 8 * streamed.ok
    assert 0 < streamed.deltas <= streamed.tokens
    assert streamed.frame_bytes > streamed.events > streamed.deltas
    assert ratio(results, "again", Name.LONGHAUL, "stream", Metric.TOKENS) is not None
    assert orjson.loads((tmp_path / "run.json").read_bytes())["samples"]
    assert Results.load(tmp_path / "run.json").samples == results.samples
    assert (tmp_path / "logs" / "longhaul.log").exists()


async def test_nothing_that_is_done_to_one_response_reads_the_whole_table(tmp_path: Path) -> None:
    """The statements are the product's own; 10,000 rows are enough for Postgres to want its indexes."""
    results = await scale.measure("stored", [10_000], lambda _: None, build=tmp_path)
    assert [row["full scans"] for row in results.rows] == [""]
    assert Results.load(tmp_path / "scale-stored.json").rows == results.rows
