"""The fleet's metrics: what the rows say at each scrape.

Every copy of maintenance shows the same truth, so queries take one of them (`max by (...)`), and none has to lead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.metrics.labels import top
from app.protocol.text import type_and_places
from app.queue.message import CLASSES, class_of
from app.store.database import Database
from app.store.queue import fleet
from app.store.queue.fleet import FleetFacts, WorkerFacts

log = logging.getLogger("longhaul.metrics")

READ_SECONDS = 4.0
"""How long a scrape waits for Postgres. Prometheus gives up after ten seconds, by default."""

STATES = ("waiting", "sent", "running", "yielded", "released")
_Key = tuple[str, ...]
_CLASS = ("model", "tier", "mode")
_WORKER_STATES = ("ready", "draining", "drained")
_SCOPES = ("model", "project")
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "responses": (
        "Unfinished responses: waiting in line, sent to a worker, running, yielded, or released (a worker died or"
        " drained, and none has them yet).",
        (*_CLASS, "state"),
    ),
    "oldest_queued_seconds": (
        "Seconds since the insert of the oldest response that no worker has claimed; 0: none but what is paused.",
        _CLASS,
    ),
    "waiting_by_project": (
        "Responses that wait in line, of the 50 projects with most, and of all others together.",
        ("project",),
    ),
    "lines_in_files": ("Lines of batches that are no responses yet.", ("model",)),
    "suspects": ("Unfinished responses that have crashed since they made progress.", ("model",)),
    "workers": (
        "Living workers: ready, draining (they take no responses now), or drained by operators (nor have they any).",
        ("model", "state"),
    ),
    "drains": ("Living workers that operators drain, or have drained.", ("model",)),
    "paused": ("Pauses by operators: of the whole model, or of one project in it each.", ("model", "scope")),
    "slots": ("Slots of the living workers that take responses now.", ("model",)),
    "lease_seconds": ("Seconds until the first lease of a living worker runs out, unless it is renewed.", ("model",)),
    "reclaimable_log_bytes": (
        f"Bytes of logs at the end of their retention, not deleted yet; of the {2 * fleet.MAX_LOGS} oldest at most.",
        (),
    ),
    "log_overdue_seconds": ("How long the oldest of these logs is at the end of its retention.", ()),
}
"""`longhaul_fleet_` and the key is the name; its sentence and labels."""

Models = Callable[[], Mapping[str, str]]
"""The models by queue, as the models file has them."""


class FleetCollector(Collector):
    """Reads Postgres at each scrape, on the loop on which it was made. `models` are shown even if they have nothing."""

    def __init__(self, db: Database, retention_seconds: float, models: Models) -> None:
        self._db = db
        self._retention_seconds = retention_seconds
        self._models = models
        self._loop = asyncio.get_running_loop()
        self._is_away = False

    def describe(self) -> Iterator[Metric]:
        yield from _families({})
        yield from _own(0, 0.0)

    def collect(self) -> Iterator[Metric]:
        began = time.perf_counter()
        facts = self._facts()
        if facts is not None:
            yield from _families(figures(facts, self._models()))
        yield from _own(int(facts is not None), time.perf_counter() - began)

    def _facts(self) -> FleetFacts | None:
        """None while Postgres is away. From the thread of a scrape."""
        try:
            return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(2 * READ_SECONDS)
        except Exception as error:  # whatever it is, a right that the role lacks, for instance: other metrics are there
            if not self._is_away:
                log.warning("no metrics of the fleet: %s", type_and_places(error))
            self._is_away = True
            return None

    async def _read(self) -> FleetFacts:
        async with asyncio.timeout(READ_SECONDS):
            facts = await fleet.read(self._db, self._retention_seconds)
        if self._is_away:
            log.info("the fleet's metrics are there again")
            self._is_away = False
        return facts


def _own(up: int, seconds: float) -> Iterator[Metric]:
    yield GaugeMetricFamily("longhaul_fleet_up", "1 if the fleet's other metrics are here; 0: Postgres is away.", up)
    yield GaugeMetricFamily("longhaul_fleet_read_seconds", "How long it took to read them from Postgres.", seconds)


def _families(found: Mapping[str, Mapping[_Key, float]]) -> Iterator[Metric]:
    for name, (sentence, labels) in GAUGES.items():
        family = GaugeMetricFamily(f"longhaul_fleet_{name}", sentence, labels=labels)
        for values, number in found.get(name, {}).items():
            family.add_metric(values, number)
        yield family


def figures(facts: FleetFacts, models: Mapping[str, str]) -> dict[str, dict[_Key, float]]:
    """The values of all GAUGES by their labels. A response of an adapter counts for the model of its queue."""
    of_queue = {**{worker.queue: worker.model for worker in facts.workers}, **models}

    def model(queue: str) -> str:
        return of_queue.get(queue, queue.removeprefix("model."))

    known = list(dict.fromkeys(of_queue.values()))
    return {
        **_queue_figures(facts, model, known),
        **_worker_figures(facts, known),
        "paused": _summed(
            _none(known, _SCOPES)
            + [((model(queue), "project" if project else "model"), 1.0) for queue, project in facts.pauses]
        ),
        "suspects": _summed(_none(known) + [((model(each.queue),), each.crashed) for each in facts.begun]),
        "lines_in_files": _summed(_none(known) + [((model(each.queue),), each.count) for each in facts.in_files]),
        "waiting_by_project": {(name,): count for name, count in top(_by_project(facts)).items()},
        "reclaimable_log_bytes": {(): float(facts.reclaimable_bytes)},
        "log_overdue_seconds": {(): facts.overdue_seconds},
    }


def _none(models: Iterable[str], *labels: Iterable[str]) -> list[tuple[_Key, float]]:
    """Zeros for all of these labels: what has nothing is shown, and an alert sees it come."""
    return [(key, 0.0) for key in product(models, *labels)]


def _queue_figures(
    facts: FleetFacts, model: Callable[[str], str], known: Sequence[str]
) -> dict[str, dict[_Key, float]]:
    tiers, modes = map(dict.fromkeys, zip(*CLASSES, strict=True))
    counts = _none(known, tiers, modes, STATES)
    oldest: dict[_Key, float] = dict(_none(known, tiers, modes))
    for flow in facts.flows:
        key = (model(flow.queue), *class_of(flow.priority))
        counts.append(((*key, "waiting"), flow.count))
        seconds = 0.0 if facts.is_paused(flow.queue, flow.project) else flow.oldest_seconds or 0.0
        oldest[key] = max(oldest.get(key, 0.0), seconds)
    for each in facts.begun:
        key = (model(each.queue), *class_of(each.priority))
        counts.append(((*key, each.state), each.count))
        if each.in_line:  # they are among what waits, too
            counts.append(((*key, "waiting"), -each.in_line))
        seconds = each.oldest_seconds if each.state == "sent" else 0.0
        oldest[key] = max(oldest.get(key, 0.0), seconds)
    return {"responses": _summed(counts), "oldest_queued_seconds": oldest}


def _worker_figures(facts: FleetFacts, known: Sequence[str]) -> dict[str, dict[_Key, float]]:
    states: list[tuple[_Key, float]] = [((worker.model, _state(worker)), 1.0) for worker in facts.workers]
    leases: dict[_Key, float] = {}
    for worker in facts.workers:
        leases[worker.model,] = min(leases.get((worker.model,), worker.lease_seconds_left), worker.lease_seconds_left)
    slots = [((worker.model,), 0.0 if worker.is_drained else float(worker.slots)) for worker in facts.workers]
    return {
        "workers": _summed(_none(known, _WORKER_STATES) + states),
        "drains": _summed(_none(known) + [((worker.model,), float(worker.is_drained)) for worker in facts.workers]),
        "slots": _summed([*_none(known), *slots]),
        "lease_seconds": leases,
    }


def _state(worker: WorkerFacts) -> str:
    if worker.slots and not worker.is_drained:
        return "ready"
    return "drained" if worker.is_drained and not worker.has_work else "draining"


def _by_project(facts: FleetFacts) -> Counter[str]:
    waiting: Counter[str] = Counter()
    for flow in facts.flows:
        waiting[flow.project] += flow.count
    return waiting


def _summed(pairs: Sequence[tuple[_Key, float]]) -> dict[_Key, float]:
    sums: dict[_Key, float] = {}
    for key, number in pairs:
        sums[key] = sums.get(key, 0.0) + number
    return sums
