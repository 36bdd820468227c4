"""The kinds of faults, by name."""

from __future__ import annotations

import signal

from tests.faults.arena import Inflict
from tests.faults.batch_faults import maintenance_killed_in_a_step, worker_killed_with_its_lines
from tests.faults.member import Role
from tests.faults.plan import LEASE_SECONDS
from tests.faults.process_faults import (
    all_killed,
    engine_dies_of_a_request,
    engine_killed,
    group_stopped,
    hard_killed_again,
    network,
    restarted_in_turn,
    signalled,
    stopped,
    upgraded,
)
from tests.faults.queue_faults import (
    apis_killed_before_they_send,
    flushed_without_maintenance,
    worker_killed_before_its_dispatch,
)
from tests.faults.service_faults import (
    all_terminated,
    events_repeated,
    messages_repeated,
    postgres_backend_killed,
    postgres_killed,
    postgres_restarted,
    postgres_stopped,
    sessions_terminated,
    valkey_commands,
    valkey_emptied,
    valkey_killed,
    valkey_restarted,
    valkey_stopped,
)
from tests.faults.store_faults import (
    DAMAGES,
    damaged,
    deadlock,
    disk_full,
    heartbeats_cancelled,
    killed_after_a_claim,
    queries_cancelled,
    statements_time_out,
)
from tests.faults.world_faults import clock_jumps, postgres_failed_over, slow_network, valkey_password_changed

BEYOND = (LEASE_SECONDS + 0.7, LEASE_SECONDS + 2.5)
"""Seconds after which a silent worker counts as dead, and a little more."""

KINDS: dict[str, tuple[int, Inflict]] = {
    "worker: kill -9": (8, signalled(Role.WORKER, signal.SIGKILL)),
    "worker: SIGTERM": (8, signalled(Role.WORKER, signal.SIGTERM)),
    "worker: SIGTERM to its control group": (4, signalled(Role.WORKER, signal.SIGTERM, group=True)),
    "worker: SIGINT to its control group": (3, signalled(Role.WORKER, signal.SIGINT, group=True)),
    "fleet: SIGTERM to everything": (1, all_terminated),
    "worker: stopped within its lease": (6, stopped(Role.WORKER, 0.2, LEASE_SECONDS - 1)),
    "worker: stopped beyond its lease": (4, stopped(Role.WORKER, *BEYOND)),
    "worker: stopped with its whole group, beyond its lease": (3, group_stopped(Role.WORKER, *BEYOND)),
    "worker: kill -9 of one response's, again and again": (1, hard_killed_again),
    "engine: EngineCore killed": (0, engine_killed),
    "engine: dies of a request": (2, engine_dies_of_a_request),
    "workers: restarted in turn": (0, restarted_in_turn(Role.WORKER)),
    "fleet: upgraded": (0, upgraded),
    "workers: all killed": (1, all_killed(Role.WORKER)),
    "api: kill -9": (6, signalled(Role.API, signal.SIGKILL)),
    "api: SIGTERM": (4, signalled(Role.API, signal.SIGTERM)),
    "api: stopped": (4, stopped(Role.API, 0.2, 3)),
    "maintenance: kill -9": (4, signalled(Role.MAINTENANCE, signal.SIGKILL)),
    "maintenance: SIGTERM": (2, signalled(Role.MAINTENANCE, signal.SIGTERM)),
    "maintenance: stopped": (2, stopped(Role.MAINTENANCE, 0.5, 5)),
    "flower: kill -9": (1, signalled(Role.FLOWER, signal.SIGKILL)),
    "valkey: killed, started empty": (3, valkey_emptied),
    "valkey: killed": (2, valkey_killed),
    "valkey: restarted": (2, valkey_restarted),
    "valkey: stopped": (4, valkey_stopped),
    "valkey: FLUSHALL": (8, valkey_commands("FLUSHALL")),
    "valkey: connections killed": (4, valkey_commands("CLIENT KILL TYPE normal", "CLIENT KILL TYPE pubsub")),
    "postgres: killed": (2, postgres_killed),
    "postgres: restarted": (2, postgres_restarted),
    "postgres: one backend killed": (2, postgres_backend_killed),
    "postgres: stopped": (3, postgres_stopped),
    "postgres: sessions terminated": (6, sessions_terminated),
    "postgres: killed right after a claim": (2, killed_after_a_claim),
    "postgres: queries cancelled": (5, queries_cancelled),
    "postgres: heartbeats cancelled": (5, heartbeats_cancelled),
    "postgres: statements time out": (4, statements_time_out),
    "postgres: deadlock": (3, deadlock),
    "postgres: disk full": (4, disk_full),
    **{name: (2, damaged(name)) for name in DAMAGES},
    "queue: messages repeated": (6, messages_repeated),
    "queue: worker killed before its dispatch": (4, worker_killed_before_its_dispatch),
    "queue: apis killed before they send": (3, apis_killed_before_they_send),
    "queue: flushed without maintenance": (4, flushed_without_maintenance),
    "batch: worker killed with its lines": (6, worker_killed_with_its_lines),
    "batch: maintenance killed in a step": (6, maintenance_killed_in_a_step),
    "pubsub: events repeated": (6, events_repeated),
    "network: worker and postgres": (8, network(Role.WORKER, "postgres")),
    "network: worker and postgres, beyond its lease": (3, network(Role.WORKER, "postgres", *BEYOND)),
    "network: worker and valkey": (6, network(Role.WORKER, "valkey")),
    "network: api and postgres": (8, network(Role.API, "postgres")),
    "network: api and valkey": (6, network(Role.API, "valkey")),
    "network: maintenance and postgres": (3, network(Role.MAINTENANCE, "postgres")),
    "network: maintenance and valkey": (3, network(Role.MAINTENANCE, "valkey")),
    "network: flower and valkey": (1, network(Role.FLOWER, "valkey")),
    "network: worker and postgres, slow": (4, slow_network(Role.WORKER, "postgres")),
    "network: worker and valkey, slow": (2, slow_network(Role.WORKER, "valkey")),
    "network: api and postgres, slow": (4, slow_network(Role.API, "postgres")),
    "network: api and valkey, slow": (2, slow_network(Role.API, "valkey")),
    "network: maintenance and postgres, slow": (2, slow_network(Role.MAINTENANCE, "postgres")),
    "clock: of a worker": (3, clock_jumps(Role.WORKER)),
    "clock: of an api": (3, clock_jumps(Role.API)),
    "clock: of maintenance": (4, clock_jumps(Role.MAINTENANCE)),
    "valkey: password changed": (4, valkey_password_changed),
    "postgres: failed over": (4, postgres_failed_over),
}
"""Name -> its weight in random schedules, and the fault. Weight 0: only if it is asked for by name."""
