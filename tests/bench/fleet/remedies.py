"""What to do when a part is full, in the order of what it takes: settings first, code last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.bench.fleet.model import Fleet

SIZES = (10, 100, 1000)
"""Workers of the fleets that are looked at."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """`changes`: fields of the fleet."""

    what: str
    exists: bool
    """False: it needs code."""
    changes: Mapping[str, Any]


REMEDIES = (
    Remedy("workers with `LONGHAUL_DATABASE_POOL=2`, `max_connections=5000`", True, {"pool": 2, "connections": 5000}),
    Remedy("64 API processes", True, {"api": 64}),
    Remedy("8 copies of maintenance", True, {"maintenance": 8}),
    Remedy("`LONGHAUL_EVENTS_PER_SECOND=640`", True, {"events": 640.0}),
    Remedy("8 Redis for pub/sub alone", False, {"pubsub_servers": 8}),
    Remedy("8 Postgres, and a broker beside each", False, {"postgres": 8, "brokers": 8}),
    Remedy("GETs answered by replicas", False, {"replicas": 1}),
    Remedy("256 API processes and 32 copies of maintenance", True, {"api": 256, "maintenance": 32}),
)


def ladder(fleet: Fleet) -> Iterator[tuple[str, Fleet]]:
    """The fleet as it is, then with each remedy added to the ones before."""
    yield "as it comes", fleet
    for remedy in REMEDIES:
        fleet = replace(fleet, **remedy.changes)
        yield remedy.what + ("" if remedy.exists else " (needs code)"), fleet
