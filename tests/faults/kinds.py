"""The kinds of faults: name, weight in random schedules, and what is done and undone."""

from __future__ import annotations

import signal

from tests.faults import moments, service_faults, store_faults
from tests.faults.arena import Inflict
from tests.faults.member import Role
from tests.faults.plan import LEASE_SECONDS
from tests.faults.process_faults import (
    Service,
    all_killed,
    be_full,
    engine_dies_of_a_request,
    lasting,
    network,
    shift_clock,
    signalled,
    stop,
    stop_group,
    upgraded,
)
from tests.faults.proxy import Mode
from tests.faults.service_faults import away, commands, frozen

API, WORKER, MAINTENANCE, FLOWER, SERVER = Role.API, Role.WORKER, Role.MAINTENANCE, Role.FLOWER, Role.SERVER
BEYOND = (LEASE_SECONDS + 0.7, LEASE_SECONDS + 2.5)
"""Seconds after which a silent worker counts as dead, and a little more."""
BROKEN = (None, Mode.CUT, Mode.STALL, Mode.MUTE)


def _broken(role: Role, service: Service, minimum: float = 0.1, maximum: float = 1.5) -> Inflict:
    return lasting(role, minimum, maximum, network(service, *BROKEN), f" {service}")


def _slow(role: Role, service: Service) -> Inflict:
    return lasting(role, 1, 6, network(service, Mode.SLOW), f" {service}")


KINDS: dict[str, tuple[int, Inflict]] = {
    "worker: kill -9": (8, signalled(WORKER, signal.SIGKILL)),
    "worker: SIGTERM": (8, signalled(WORKER, signal.SIGTERM)),
    "worker: SIGTERM to its control group": (4, signalled(WORKER, signal.SIGTERM, group=True)),
    "worker: SIGINT to its control group": (3, signalled(WORKER, signal.SIGINT, group=True)),
    "worker: stopped within its lease": (6, lasting(WORKER, 0.2, LEASE_SECONDS - 1, stop)),
    "worker: stopped beyond its lease": (4, lasting(WORKER, *BEYOND, stop)),
    "worker: stopped with its whole group, beyond its lease": (3, lasting(WORKER, *BEYOND, stop_group)),
    "engine: dies of a request": (2, engine_dies_of_a_request),
    "workers: all killed": (1, all_killed(WORKER)),
    "api: kill -9": (6, signalled(API, signal.SIGKILL)),
    "api: SIGTERM": (4, signalled(API, signal.SIGTERM)),
    "api: stopped": (4, lasting(API, 0.2, 3, stop)),
    "maintenance: kill -9": (4, signalled(MAINTENANCE, signal.SIGKILL)),
    "maintenance: SIGTERM": (2, signalled(MAINTENANCE, signal.SIGTERM)),
    "maintenance: stopped": (2, lasting(MAINTENANCE, 0.5, 5, stop)),
    "flower: kill -9": (1, signalled(FLOWER, signal.SIGKILL)),
    "server: kill -9": (6, signalled(SERVER, signal.SIGKILL)),
    "server: away": (4, lasting(SERVER, 0.5, 6, network("front", Mode.CUT), " front")),
    "server: hangs": (4, lasting(SERVER, 0.5, 9, stop)),
    "server: full": (4, lasting(SERVER, 0.5, 5, be_full)),
    "fleet: SIGTERM to everything": (1, service_faults.all_terminated),
    "fleet: upgraded": (0, upgraded),
    "valkey: killed": (5, away("valkey", "kill", 2)),
    "valkey: restarted": (2, away("valkey", "stop")),
    "valkey: stopped": (4, frozen("valkey", 3)),
    "valkey: FLUSHALL": (8, commands("FLUSHALL")),
    "valkey: connections killed": (4, commands("CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub")),
    "valkey: password changed": (4, service_faults.password_changed),
    "postgres: killed": (2, away("postgres", "kill", 1.5)),
    "postgres: restarted": (2, away("postgres", "stop")),
    "postgres: stopped": (3, frozen("postgres", 2)),
    "postgres: one backend killed": (2, service_faults.backend_killed),
    "postgres: failed over": (4, service_faults.failed_over),
    "postgres: sessions terminated": (6, store_faults.sessions_terminated),
    "postgres: queries cancelled": (5, store_faults.queries_cancelled),
    "postgres: heartbeats cancelled": (5, moments.heartbeats_cancelled),
    "postgres: statements time out": (4, store_faults.statements_time_out),
    "postgres: deadlock": (3, moments.deadlock),
    "postgres: disk full": (4, store_faults.disk_full),
    "queue: messages repeated": (6, service_faults.messages_repeated),
    "queue: worker killed before its dispatch": (4, moments.worker_killed_before_its_dispatch),
    "queue: apis killed before they send": (3, moments.apis_killed_before_they_send),
    "queue: flushed without maintenance": (4, service_faults.flushed_without_maintenance),
    "batch: worker killed with its lines": (6, moments.worker_killed_with_its_lines),
    "batch: maintenance killed in a step": (6, moments.maintenance_killed_in_a_step),
    "pubsub: events repeated": (6, service_faults.events_repeated),
    "network: worker and postgres": (8, _broken(WORKER, "postgres")),
    "network: worker and postgres, beyond its lease": (3, _broken(WORKER, "postgres", *BEYOND)),
    "network: worker and valkey": (6, _broken(WORKER, "redis")),
    "network: api and postgres": (8, _broken(API, "postgres")),
    "network: api and valkey": (6, _broken(API, "redis")),
    "network: maintenance and postgres": (3, _broken(MAINTENANCE, "postgres")),
    "network: maintenance and valkey": (3, _broken(MAINTENANCE, "redis")),
    "network: flower and valkey": (1, _broken(FLOWER, "redis")),
    "network: worker and postgres, slow": (4, _slow(WORKER, "postgres")),
    "network: worker and valkey, slow": (2, _slow(WORKER, "redis")),
    "network: api and postgres, slow": (4, _slow(API, "postgres")),
    "network: api and valkey, slow": (2, _slow(API, "redis")),
    "network: maintenance and postgres, slow": (2, _slow(MAINTENANCE, "postgres")),
    "network: worker and server": (4, _broken(SERVER, "front")),
    "network: worker and server, slow": (2, _slow(SERVER, "front")),
    "clock: of a worker": (3, lasting(WORKER, 0.5, 6, shift_clock, " clock")),
    "clock: of an api": (3, lasting(API, 0.5, 6, shift_clock, " clock")),
    "clock: of maintenance": (4, lasting(MAINTENANCE, 0.5, 6, shift_clock, " clock")),
}
"""Name -> its weight, and the fault. Weight 0: only if it is asked for by name."""
