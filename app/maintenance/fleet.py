"""The fleet's metrics: what the rows say at each scrape.

Every copy of maintenance shows the same truth, so queries take one of them (`max by (...)`), and none has to lead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.metrics.labels import top
from app.protocol.text import type_and_places
from app.queue.message import CLASSES, class_of, model_of
from app.store.database import Database
from app.store.operations import snapshot
from app.store.operations.snapshot import Snapshot

log = logging.getLogger("longhaul.metrics")

READ_SECONDS = 4.0
"""How long a scrape waits for Postgres. Prometheus gives up after ten seconds, by default."""

STATES = ("waiting", "sent", "running", "yielded", "released")
_Key = tuple[str, ...]
_CLASS = ("model", "tier", "mode")
_WORKER_STATES = ("ready", "draining", "drained")
_SCOPES = ("model", "project")
_ENDPOINT_STATES = ("healthy", "failing", "disabled")
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
        f"Bytes of logs at the end of their retention, not deleted yet; of the {2 * snapshot.MAX_LOGS} oldest at most.",
        (),
    ),
    "webhook_endpoints": ("Webhook endpoints: healthy, failing since their last success, or disabled.", ("state",)),
    "webhook_late_seconds": ("Seconds since the oldest delivery to a healthy webhook endpoint was due.", ()),
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

    def _facts(self) -> Snapshot | None:
        """None while Postgres is away. From the thread of a scrape."""
        try:
            return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(2 * READ_SECONDS)
        except Exception as error:  # whatever it is, a right that the role lacks, for instance: other metrics are there
            if not self._is_away:
                log.warning("no metrics of the fleet: %s", type_and_places(error))
            self._is_away = True
            return None

    async def _read(self) -> Snapshot:
        async with asyncio.timeout(READ_SECONDS):
            facts = await snapshot.read(self._db, self._retention_seconds)
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


def figures(facts: Snapshot, models: Mapping[str, str]) -> dict[str, dict[_Key, float]]:
    """The values of all GAUGES by their labels. A response of an adapter counts for the model of its queue."""
    living = [each for each in facts.workers if each.is_living]
    of_queue = {**{worker.queue: worker.model for worker in living}, **models}
    known = list(dict.fromkeys(of_queue.values()))
    tiers, modes = map(dict.fromkeys, zip(*CLASSES, strict=True))

    def model(queue: str) -> str:
        return of_queue.get(queue, model_of(queue))

    responses = _zeros(known, tiers, modes, STATES)
    oldest = _zeros(known, tiers, modes)
    waiting: Counter[str] = Counter()
    lines, suspects = _zeros(known), _zeros(known)
    for each in facts.counts:
        name = model(each.queue)
        if each.state == "in_files":
            lines[name,] += each.number
            continue
        key = (name, *class_of(each.priority))
        responses[*key, each.state] += each.number
        responses[*key, "waiting"] -= each.in_line  # they are among what waits, too
        suspects[name,] += each.suspects
        if each.state == "waiting":
            waiting[each.project] += each.number
        if each.state == "sent" or (each.state == "waiting" and not facts.is_paused(each.queue, each.project)):
            oldest[key] = max(oldest[key], each.oldest_seconds or 0.0)
    workers, drains, slots = _zeros(known, _WORKER_STATES), _zeros(known), _zeros(known)
    leases: dict[_Key, float] = {}
    for worker in living:
        name = worker.model
        workers[name, worker.state] += 1
        drains[name,] += worker.draining_since is not None
        slots[name,] += worker.slots if worker.is_ready else 0
        leases[name,] = min(leases.get((name,), worker.lease_seconds), worker.lease_seconds)
    paused = _zeros(known, _SCOPES)
    for pause in facts.pauses:
        paused[model(pause.queue), "project" if pause.project else "model"] += 1
    return {
        "responses": responses,
        "oldest_queued_seconds": oldest,
        "waiting_by_project": {(name,): count for name, count in top(waiting).items()},
        "lines_in_files": lines,
        "suspects": suspects,
        "workers": workers,
        "drains": drains,
        "paused": paused,
        "slots": slots,
        "lease_seconds": leases,
        "reclaimable_log_bytes": {(): float(facts.reclaimable_bytes)},
        "log_overdue_seconds": {(): facts.late.logs},
        "webhook_endpoints": {(state,): float(getattr(facts.webhooks, state)) for state in _ENDPOINT_STATES},
        "webhook_late_seconds": {(): facts.webhooks.late_seconds},
    }


def _zeros(models: Iterable[str], *labels: Iterable[str]) -> defaultdict[_Key, float]:
    """Zeros for all of these labels: what has nothing is shown, and an alert sees it come."""
    return defaultdict(float, dict.fromkeys(product(models, *labels), 0.0))
