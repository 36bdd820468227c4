"""The harness at its smallest: numbers come out, and it knows when not to measure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.settings import CHECKOUT
from tests.bench import page, path
from tests.bench.client.scan import Scan
from tests.bench.contenders.longhaul import Variant
from tests.bench.contenders.models import scripted
from tests.bench.load import Load, Mode
from tests.bench.numbers import Spread, ratios
from tests.bench.plan import CELLS, SCRIPT, Cell, Name, Plan
from tests.bench.results import Results
from tests.bench.rounds import Comparison
from tests.bench.targets import TARGETS, verdicts
from tests.support.services import open_folder

pytestmark = pytest.mark.long

FRAMES = (
    b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n'
    b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'
    b": keepalive\n\n"
    b'event: response.output_text.delta\ndata: {"delta":"event: response.output_text.delta\\n"}\n\n'
    b'event: response.completed\ndata: {"response":{"status":"completed","usage":{"output_tokens":2}}}\n\n'
    b"data: [DONE]\n\n"
)


def test_a_ratio_is_the_median_of_the_ratios_of_single_rounds() -> None:
    assert ratios({0: 2.0, 1: 30.0, 2: 8.0}, {0: 1.0, 1: 10.0, 3: 1.0}) == [2.0, 3.0]
    assert Spread.of([2.0, 3.0, 9.0]) == Spread(3.0, 2.0, 9.0, 3)


def test_every_target_is_about_a_cell_that_is_measured_and_a_cell_is_read_as_it_is_written() -> None:
    assert {target.cell for target in TARGETS if target.results == "run"} <= set(map(str, Plan.quick().cells))
    measured = {str(cell) for plan, *_ in path.Sizes().runs() for cell in plan.cells}
    assert {target.cell for target in TARGETS if target.results == "path"} <= measured
    assert [Cell.parse(str(cell)) for cell in CELLS] == list(CELLS)


def test_a_stream_is_counted_alike_wherever_it_is_cut_and_one_without_its_end_is_an_error() -> None:
    for size in (1, 7, 64, len(FRAMES)):
        ticks = iter(range(1000))
        scan = Scan(lambda ticks=ticks: float(next(ticks)))  # type: ignore[misc]
        for start in range(0, len(FRAMES), size):
            scan.feed(FRAMES[start : start + size])
        assert (scan.events, scan.deltas, scan.bytes, scan.first) == (4, 2, len(FRAMES), 0.0), size
        assert scan.response()["usage"] == {"output_tokens": 2}, size
    cut = Scan()
    cut.feed(FRAMES[: FRAMES.index(b"event: response.completed")])
    with pytest.raises(ValueError, match="without a terminal event"):
        cut.response()


def test_a_client_does_not_outlive_who_started_it() -> None:
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=CHECKOUT
    )
    assert client.stdin and client.stdout
    with client.stdout:
        client.stdin.write(Load("http://127.0.0.1:1", Mode.STREAM, 1, 1, warmup=0, realtime=False).encode() + b"\n")
        client.stdin.flush()
        assert client.stdout.readline() == b"ready\n"
        client.stdin.close()
        assert client.wait(30) == os.EX_IOERR


async def test_two_longhauls_are_compared_in_every_mode_judged_and_written_between_the_marks(tmp_path: Path) -> None:
    cells = [*(Cell(mode, 2, SCRIPT, mode.value) for mode in Mode), Cell(Mode.STREAM, 16, SCRIPT)]
    plan = Plan(cells, rounds=1, length=0.01, tokens=8, busy=2, realtime=False)
    results = Results.begin("run", tmp_path)
    with open_folder() as folder:
        variants = {
            Name.LONGHAUL.value: Variant(),
            Name.PEER.value: Variant(settings={"LONGHAUL_LOG_LEVEL": "WARNING"}),
        }
        contenders = path.contenders(folder, scripted(), variants)
        # Other tests' engines may be alive: nothing is timed here.
        await Comparison(plan, results, lambda _: None, allow_foreign_engine=True).run(contenders)
    assert [sample.contender for sample in results.samples[:2]] == list(variants)
    assert {(sample.contender, sample.cell) for sample in results.samples} == {
        (name, str(cell)) for name in variants for cell in cells
    }
    for sample in results.samples:
        assert sample.measured.figures.errors == 0
        assert sample.measured.figures.ok >= 2
        assert {"api", "worker", "maintenance", "postgres", "redis"} <= set(sample.measured.cpu)
        assert sample.measured.wal_bytes
    streamed = results.of(Name.LONGHAUL, "stream")[0].measured.figures
    assert streamed.tokens == 8 * streamed.ok
    assert 0 < streamed.deltas <= streamed.tokens
    assert streamed.frame_bytes > streamed.events > streamed.deltas
    judged = verdicts({"run": results})
    assert [verdict.target.says for verdict in judged if verdict.met is not None] == ["16 streams"]
    assert Results.load(tmp_path / "run.json").samples == results.samples
    assert (tmp_path / "logs" / "longhaul.log").exists()

    (tmp_path / page.PAGE).write_text("# Mine\n\n<!-- bench:run -->\nold\n<!-- /bench:run -->\n\nMine too.\n")
    text = page.write(tmp_path, tmp_path).read_text()
    assert text.startswith("# Mine\n") and "Mine too." in text and "old" not in text
    assert "| stream | longhaul |" in text and "tokens/s in time" in text
