"""The fleet's metrics: what the rows say at each scrape.

Every copy of maintenance shows the same truth, so queries take one of them (`max by (...)`), and none has to lead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.metrics.labels import top
from app.operations.models import ModelTotals, model_totals
from app.protocol.text import type_and_places
from app.queue.message import CLASSES, model_of
from app.store.database import Database
from app.store.operations import snapshot
from app.store.operations.snapshot import Snapshot

log = logging.getLogger("longhaul.metrics")

READ_SECONDS = 4.0
"""How long a scrape waits for Postgres. Prometheus gives up after ten seconds, by default."""

STATES = ("waiting", "sent", "running", "released")
_Key = tuple[str, ...]
_CLASS = ("model", "tier", "mode")
_WORKER_STATES = ("ready", "draining", "drained")
_SCOPES = ("model", "project")
_ENDPOINT_STATES = ("healthy", "failing", "disabled")
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "responses": (
        "Unfinished responses: waiting in line (those that yielded, too), sent to a worker, running, or released"
        " (a worker died or drained, and none has them yet).",
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
    """The values of all GAUGES by their labels, zeros as well: an alert sees what comes."""
    found: dict[str, dict[_Key, float]] = {name: defaultdict(float) for name in GAUGES}
    waiting: Counter[str] = Counter()
    every = model_totals(facts, models)
    for model in every:
        _add_model(found, model)
        waiting.update(model.waiting_of)
    for worker in facts.workers:
        if worker.is_living:
            found["drains"][worker.model,] += worker.draining_since is not None
            least = found["lease_seconds"].get((worker.model,), worker.lease_seconds)
            found["lease_seconds"][worker.model,] = min(least, worker.lease_seconds)
    names = {model.queue: model.model for model in every}
    for pause in facts.pauses:
        name = names.get(pause.queue, model_of(pause.queue))
        found["paused"][name, "project" if pause.project else "model"] += 1
    return {
        **found,
        "waiting_by_project": {(name,): count for name, count in top(waiting).items()},
        "reclaimable_log_bytes": {(): float(facts.reclaimable_bytes)},
        "log_overdue_seconds": {(): facts.late.logs},
        "webhook_endpoints": {(state,): float(getattr(facts.webhooks, state)) for state in _ENDPOINT_STATES},
        "webhook_late_seconds": {(): facts.webhooks.late_seconds},
    }


def _add_model(found: Mapping[str, dict[_Key, float]], model: ModelTotals) -> None:
    """Two queues may show the same name: the old one of a model, and its new one."""
    name = model.model
    for tier, mode in CLASSES:
        totals, key = model.of_class(tier, mode), (name, tier, mode)
        for state in STATES:
            found["responses"][*key, state] += getattr(totals, state)
        found["oldest_queued_seconds"][key] = max(found["oldest_queued_seconds"][key], totals.oldest_in_turn_seconds)
    for state in _WORKER_STATES:
        found["workers"][name, state] += model.workers[state]
    for scope in _SCOPES:
        found["paused"][name, scope] += 0
    found["drains"][name,] += 0
    found["slots"][name,] += model.slots
    found["lines_in_files"][name,] += model.in_files
    found["suspects"][name,] += model.suspects
