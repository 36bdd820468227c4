"""docs/metrics.md lists every metric of the code, with its kind, its labels and its sentence."""

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
from tests.support.promql import alerts, queries

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


def test_every_alert_has_its_severity_and_a_summary() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]


def test_every_metric_of_the_code_is_on_the_board_or_in_an_alert() -> None:
    asked = " ".join(queries())
    shown = {each.name for each in families() if not each.name.endswith("_created")}
    assert {name for name in shown if not re.search(rf"\b{name}(_total|_bucket|_sum|_count)?\b", asked)} == set()
