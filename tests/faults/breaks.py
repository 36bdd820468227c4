"""Promises that can be switched off in real processes (`broken/sitecustomize.py`), and the plans that show it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.plan import Plan

SHOWN_BY: Mapping[str, str] = {
    "fence": "worker: stopped beyond its lease",
    "claim": "queue: messages repeated",
    "publish-after-commit": "network: worker and postgres, beyond its lease",
    "publish-after-reconnect": "valkey: killed",
    "receive-after-reconnect": "valkey: killed",
    "line": "batch: worker killed with its lines",
    "write-once": "batch: maintenance killed in a step",
}
"""A promise, and the fault that shows its absence.

    fence                     a worker's write takes effect only while the worker owns the response
    claim                     a response is claimed only when no worker owns it
    publish-after-commit      readers get a chunk after its commit
    publish-after-reconnect   a worker publishes again once Redis is back
    receive-after-reconnect   an API process receives again once Redis is back
    line                      a response of a batch stays that of its line, whoever takes it over
    write-once                results are written into a batch's files once, however many copies of maintenance do so
"""
OF_BATCHES = frozenset({"line", "write-once"})
TIMES: Mapping[str, int] = {"line": 5}
"""How often a plan has the fault of a promise, if not twice: a worker may have ended its lines when it is killed."""


def plan_for(*promises: str, broken: bool = True) -> Plan:
    """A short run that needs each of these promises a few times. With `broken` the first one is switched off."""
    batched = OF_BATCHES & set(promises)
    return Plan(
        seed=11,
        faults=sum(TIMES.get(promise, 2) for promise in promises),
        responses=24,
        batches=4 if batched else 0,
        pause=1.5,
        at_once=16,
        apis=1,
        workers=2,
        maintenances=2 if batched else 1,
        flower=False,
        in_turn=True,
        kinds=frozenset(SHOWN_BY[promise] for promise in promises),
        broken=promises[0] if broken else None,
        settle_seconds=5 if broken and promises[0] != "write-once" else 90,  # there, everything ends
    )
