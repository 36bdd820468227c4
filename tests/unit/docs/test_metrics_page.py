"""docs/metrics.md lists every metric of the code, with its kind, its labels and its sentence, and every alert."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.maintenance import fleet
from app.metrics.bounds import BoundsCollector
from app.metrics.instruments import WORKER_GAUGES, ApiMetrics, MaintenanceMetrics, WorkerMetrics
from config.settings import CHECKOUT
from tests.support.promql import alerts, board, panels, queries

PAGE = (CHECKOUT / "docs" / "metrics.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `(longhaul_\w+)` \| (\w+) \| (.*?) \| (.+) \|$", re.MULTILINE)
_COUNTERS = {"counter": "_total"}


def families() -> Iterator[Metric]:
    """Those of each kind of process."""
    for made in (ApiMetrics, MaintenanceMetrics):
        made(registry := CollectorRegistry())
        yield from text_string_to_metric_families(generate_latest(registry).decode())
    worker = WorkerMetrics("m", registry := CollectorRegistry())
    worker.watch(dict.fromkeys(WORKER_GAUGES, lambda: 0.0))
    worker.name("worker", "1")
    yield from text_string_to_metric_families(generate_latest(registry).decode())
    yield from BoundsCollector().describe()
    yield from fleet._families({})
    yield from fleet._own(0, 0.0)


def test_the_page_has_each_metric_with_its_kind_and_its_sentence() -> None:
    documented = {(name, kind, text) for name, kind, _, text in _ROW.findall(PAGE)}
    written = {
        (f"{each.name}{_COUNTERS.get(each.type, '')}", each.type, each.documentation)
        for each in families()
        if not each.name.endswith("_created")
    }
    assert documented == written


def test_each_name_has_its_prefix_and_each_sentence_its_end() -> None:
    for each in families():
        assert each.name.startswith("longhaul_")
        assert each.documentation.endswith("."), each.name


def test_the_page_has_each_alert_in_the_order_of_the_file() -> None:
    rows = re.findall(r"^\| \[`(Longhaul\w+)`\]\(runbook\.md#longhaul\w+\) \| .+ \|$", PAGE, re.MULTILINE)
    assert rows == [rule["alert"] for rule in alerts()]
    assert rows[0] == "LonghaulWorkersBelowExpected"


def test_every_alert_has_a_severity_and_a_summary() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]


def test_every_metric_of_the_code_is_on_the_board_or_in_an_alert() -> None:
    asked = " ".join(queries())
    shown = {each.name for each in families() if not each.name.endswith("_created")}
    assert {name for name in shown if not re.search(rf"\b{name}(_total|_bucket|_sum|_count)?\b", asked)} == set()


def test_no_two_panels_have_one_place_or_one_title() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    titles = [panel["title"] for panel in panels()]
    assert len(set(places)) == len(places)
    assert len(set(titles)) == len(titles)


def test_counts_on_the_board_are_whole_and_the_largest_line_is_named_first() -> None:
    for panel in panels():
        for target in panel["targets"]:
            assert "increase(" not in target["expr"] or target["expr"].startswith("round("), panel["title"]
        legend = panel["options"]["legend"]
        assert (legend["displayMode"], legend["sortBy"], legend["sortDesc"]) == ("table", "Max", True)


def test_each_panel_has_a_description_and_the_board_says_what_its_marks_mean() -> None:
    assert [panel["title"] for panel in panels() if not panel["description"]] == []
    shown = board()
    assert shown["timezone"] == "utc"
    assert {mark["iconColor"] for mark in shown["annotations"]["list"]} == {"red", "purple", "yellow", "blue"}
    for color in ("Red", "Purple", "Yellow", "Blue"):
        assert f"{color}:" in shown["description"] or f"{color} marks:" in shown["description"]
