"""`/metrics` of every process of a real `longhaul up`."""

from __future__ import annotations

import json
import signal
from typing import Any

import httpx

from tests.e2e.conftest import read
from tests.support.longhaul import Longhaul, send_all
from tests.support.promql import Query, queries
from tests.support.scrapes import Scrape
from tests.support.waiting import until_sync

OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds."""
ENDLESS: dict[str, Any] = {"model": "scripted", "input": "/hang 5", "background": True}
MORE_THAN_SLOTS = 90


def targets(pair: Longhaul) -> dict[str, list[str]]:
    """The addresses in the file that Prometheus reads, by process."""
    found = json.loads((pair.home / "metrics.json").read_text())
    return {each["labels"]["process"]: each["targets"] for each in found}


def scraped(pair: Longhaul, process: str = "") -> Scrape:
    """The metrics of all processes whose name begins so, together. Raises an error if one does not answer."""
    addresses = [each for name, found in targets(pair).items() if name.startswith(process) for each in found]
    return Scrape.of_all([httpx.get(f"http://{address}/metrics", timeout=20).text for address in addresses])


def is_served(pair: Longhaul) -> bool:
    try:
        return scraped(pair).value("longhaul_fleet_up") == 1
    except httpx.HTTPError:
        return False


def test_each_process_has_a_port_and_a_worker_one_name_everywhere(pair: Longhaul, both: list[str]) -> None:
    found = targets(pair)
    assert sorted(found) == ["api", "maintenance", "worker.1", "worker.2"]
    assert [len(found[name]) for name in sorted(found)] == [2, 1, 1, 1]
    assert len({each for addresses in found.values() for each in addresses}) == 5
    until_sync(lambda: is_served(pair), what="metrics of all")
    assert scraped(pair, "worker").value("longhaul_worker_slots", model="scripted") == 80
    places = {(each["unit"], each["device"]) for each in read(pair, "SELECT unit, device FROM workers")}
    assert places == {("worker.1", "scripted"), ("worker.2", "scripted")}
    info = scraped(pair, "worker").families["longhaul_worker_info"]
    assert {each.labels["worker"] for each in info.samples} == set(both)
    log = pair.log.read_text()
    assert all(f"scripted is ready as {node}" in log for node in both)
    with pair.flower as flower:
        until_sync(lambda: set(both) <= set(flower.get("/api/workers", params={"refresh": "1"}).json()))


def test_a_scrape_while_postgres_is_away_has_what_the_processes_know(pair: Longhaul) -> None:
    until_sync(lambda: is_served(pair), what="metrics of all")
    with pair.http() as http:
        http.get("/v1/models").raise_for_status()
    postgres = pair.named(["postgres"])
    assert postgres
    send_all(postgres, signal.SIGSTOP)
    try:
        found = scraped(pair)
        assert found.value("longhaul_fleet_up") == 0
        assert "longhaul_fleet_responses" not in {name for name in found.labels if found.value(name)}
        assert found.value("longhaul_worker_slots") == 80
        assert "longhaul_http_requests_total" in found.labels
        assert "longhaul_maintenance_step_seconds_count" in found.labels
    finally:
        send_all(postgres, signal.SIGCONT)
    until_sync(lambda: is_served(pair), what="the fleet's metrics again")


def test_every_query_of_the_board_and_the_alerts_asks_for_what_a_scrape_has(pair: Longhaul) -> None:
    with pair.client() as client:
        client.responses.create(model="scripted", input="/say Hello")
        ids = [client.responses.create(**ENDLESS).id for _ in range(MORE_THAN_SLOTS)]
        until_sync(lambda: is_served(pair), what="metrics of all")
        found = scraped(pair).labels
        for response_id in ids:
            client.responses.cancel(response_id)
    checked = set()
    for query in queries():
        asked = Query.of(query)
        assert asked.metrics, query
        for metric, labels in asked.metrics.items():
            assert metric in found, (metric, query)
            assert labels <= found[metric] | OF_PROMETHEUS, (labels, query)
        known = set().union(*(found[metric] for metric in asked.metrics))
        assert asked.grouped <= known | OF_PROMETHEUS, (asked.grouped, query)
        checked.add(query)
    assert len(checked) > 40
