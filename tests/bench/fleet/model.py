"""The model of a fleet: how busy each shared part is, from prices (costs.py) and a workload. Pure arithmetic.

Workers have machines of their own and meet in five places: Postgres (CPU, log, connections), Redis, the API
and maintenance. A step of an engine gives each of its streams a token; what one step gave is one commit, one row a
stream. What is computed here is what the workload asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tests.bench.fleet.costs import Costs
from workers.generation.flush_clock import EVENTS_PER_SECOND, MAX_SECONDS

FULL = 0.7
"""A part that is busier than this share answers late."""
MAX_WORKERS = 1_000_000
"""Upper bound of the search in `capacity`."""
HEARTBEATS_PER_LEASE = 3
PRESENCE_SECONDS = 0.5
"""workers/generation/lease.py"""
MAINTENANCE_POOL = 4
WORKER_LANES, API_LANES = 3, 0
"""Connections beside the pools: a worker's journal has one and its lease two, an API process has none."""


class Part(StrEnum):
    """What workers share."""

    POSTGRES = "Postgres CPU"
    WAL = "Postgres WAL"
    CONNECTIONS = "Postgres connections"
    BROKER = "broker's Redis CPU"
    """With the pub/sub's, if that has no servers of its own."""
    PUBSUB = "pub/sub Redis CPU"
    API = "API CPU"
    MAINTENANCE = "maintenance CPU"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A workload, and how much there is of each part."""

    workers: int = 10
    # The workload.
    streams: float = 64
    """Responses that one worker runs at once."""
    rate: float = 50.0
    """Tokens per second of each of them: the steps of its engine."""
    tokens: float = 500
    """Output tokens of a response."""
    events: float = EVENTS_PER_SECOND
    """Bound of the events of all streams of a worker, in a second (`LONGHAUL_EVENTS_PER_SECOND`); 0: no bound.
    Workers of a fleet have accelerators."""
    readers: float = 1.0
    """Of each stream."""
    polls: float = 2.0
    """GETs of each response."""
    # The parts.
    postgres: int = 1
    """Servers, each with the responses of its share of the workers."""
    replicas: int = 0
    """Of each; they answer the GETs."""
    cores: int = 16
    """Of a Postgres server."""
    wal_bytes: float = 300e6
    """That its disk takes in a second."""
    connections: int = 500
    """`max_connections`."""
    pool: int = 10
    """`LONGHAUL_DATABASE_POOL` of a worker."""
    api_pool: int = 10
    """That of an API process, for each server."""
    brokers: int = 1
    """Redis servers, each with the queues of its share of the workers."""
    pubsub_servers: int = 0
    """Redis servers for pub/sub alone; 0: the brokers carry it, too."""
    api: int = 16
    """Processes."""
    maintenance: int = 1
    """Copies."""
    lease: float = 30.0

    @property
    def commits(self) -> float:
        """Per second, of all workers: each takes what all streams of one worker have."""
        return min(self.workers * _rate(self.rate, self._pause), self.chunks)

    @property
    def chunks(self) -> float:
        """Per second, of all workers."""
        return self.workers * self.streams * _rate(self.rate, self._pause)

    @property
    def _pause(self) -> float:
        """Seconds from one commit of a worker to the next, at least."""
        return min(MAX_SECONDS, self.streams / self.events) if self.events else 0.0

    @property
    def requests(self) -> float:
        """Per second, of all workers."""
        return self.workers * self.streams * self.rate / self.tokens

    @property
    def receiving(self) -> float:
        """API processes that receive a stream: its readers are spread over them by chance."""
        missed: float = (1 - 1 / self.api) ** self.readers
        return self.api * (1 - missed)


def _rate(most: float, interval: float) -> float:
    return min(most, 1 / interval) if interval else most


def demand(fleet: Fleet, costs: Costs) -> dict[Part, float]:
    """Cores, bytes per second or connections that the workload needs of each part, over all its servers."""
    return {
        Part.POSTGRES: _postgres(fleet, costs),
        Part.WAL: _wal(fleet, costs),
        Part.CONNECTIONS: _connections(fleet),
        Part.BROKER: _broker(fleet, costs) + (0.0 if fleet.pubsub_servers else _pubsub(fleet, costs)),
        Part.PUBSUB: _pubsub(fleet, costs) if fleet.pubsub_servers else 0.0,
        Part.API: fleet.requests * (costs.post + fleet.polls * costs.get)
        + fleet.chunks * (fleet.receiving * costs.receive + fleet.readers * costs.write),
        Part.MAINTENANCE: fleet.requests * costs.tidy.fixed + fleet.chunks * costs.tidy.each,
    }


def supply(fleet: Fleet) -> dict[Part, float]:
    """Cores, bytes per second or connections that there are of each part."""
    return {
        Part.POSTGRES: fleet.postgres * fleet.cores,
        Part.WAL: fleet.postgres * fleet.wal_bytes,
        Part.CONNECTIONS: fleet.postgres * fleet.connections,
        Part.BROKER: fleet.brokers,
        Part.PUBSUB: max(1, fleet.pubsub_servers),
        Part.API: fleet.api,
        Part.MAINTENANCE: fleet.maintenance,
    }


def shares(fleet: Fleet, costs: Costs) -> dict[Part, float]:
    """How busy each part is; above 1 the workload needs more than there is."""
    there = supply(fleet)
    return {part: wanted / there[part] for part, wanted in demand(fleet, costs).items()}


def bottleneck(fleet: Fleet, costs: Costs) -> tuple[Part, float]:
    """The busiest part."""
    found = shares(fleet, costs)
    part = max(found, key=lambda each: found[each])
    return part, found[part]


def capacity(fleet: Fleet, costs: Costs, full: float = FULL) -> int:
    """The most workers with which no part is busier than `full`."""
    low, high = 0, MAX_WORKERS
    while low < high:
        middle = (low + high + 1) // 2
        if bottleneck(replace(fleet, workers=middle), costs)[1] <= full:
            low = middle
        else:
            high = middle - 1
    return low


def _postgres(fleet: Fleet, costs: Costs) -> float:
    bystanders = costs.bystander * fleet.workers * fleet.streams / fleet.postgres
    journal = fleet.commits * (costs.commit.fixed + bystanders) + fleet.chunks * (costs.commit.each + costs.merge.each)
    requests = costs.create + costs.claim + costs.finish + costs.merge.fixed
    polls = fleet.polls * costs.poll * (0 if fleet.replicas else 1)
    alive = fleet.workers * (costs.heartbeat * HEARTBEATS_PER_LEASE / fleet.lease + costs.presence / PRESENCE_SECONDS)
    looks = fleet.postgres * fleet.maintenance * costs.looks.at(fleet.workers / fleet.postgres)
    return journal + fleet.requests * (requests + polls) + alive + looks


def _wal(fleet: Fleet, costs: Costs) -> float:
    journal = fleet.commits * costs.commit_wal.fixed + fleet.chunks * (costs.commit_wal.each + costs.merge_wal.each)
    return journal + fleet.requests * (costs.request_wal + costs.merge_wal.fixed)


def _connections(fleet: Fleet) -> float:
    """Every API process and copy of maintenance speaks to every server, a worker to its own."""
    return fleet.workers * (fleet.pool + WORKER_LANES) + fleet.postgres * (
        fleet.api * (fleet.api_pool + API_LANES) + fleet.maintenance * MAINTENANCE_POOL
    )


def _pubsub(fleet: Fleet, costs: Costs) -> float:
    published = fleet.commits * costs.publish.fixed + fleet.chunks * costs.publish.each
    return published + fleet.chunks * fleet.receiving * costs.deliver + fleet.pubsub_servers * costs.tick


def _broker(fleet: Fleet, costs: Costs) -> float:
    taken = fleet.requests * (costs.send + costs.consume)
    return taken + fleet.workers * costs.idle + fleet.brokers * costs.tick


REMEDIES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("workers with `LONGHAUL_DATABASE_POOL=2`, `max_connections=5000`", {"pool": 2, "connections": 5000}),
    ("64 API processes", {"api": 64}),
    ("8 copies of maintenance", {"maintenance": 8}),
    ("`LONGHAUL_EVENTS_PER_SECOND=640`", {"events": 640.0}),
    ("8 Redis for pub/sub alone (needs code)", {"pubsub_servers": 8}),
    ("8 Postgres, and a broker beside each (needs code)", {"postgres": 8, "brokers": 8}),
    ("GETs answered by replicas (needs code)", {"replicas": 1}),
    ("256 API processes and 32 copies of maintenance", {"api": 256, "maintenance": 32}),
)
"""What to do when a part is full, in the order of what it takes, and the fields of the fleet that it changes."""


def ladder(fleet: Fleet) -> Iterator[tuple[str, Fleet]]:
    """The fleet as it is, then with each remedy added to the ones before."""
    yield "as it comes", fleet
    for what, changes in REMEDIES:
        fleet = replace(fleet, **changes)
        yield what, fleet
