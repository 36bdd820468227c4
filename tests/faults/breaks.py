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
}
"""A promise, and the fault that shows its absence.

    fence                     a worker's write takes effect only while the worker owns the response
    claim                     a response is claimed only when no worker owns it
    publish-after-commit      readers get a chunk after its commit
    publish-after-reconnect   a worker publishes again once Redis is back
    receive-after-reconnect   an API process receives again once Redis is back
"""


def plan_for(*promises: str, broken: bool = True) -> Plan:
    """A short run that needs each of these promises twice. With `broken` the first one is switched off."""
    return Plan(
        seed=11,
        faults=2 * len(promises),
        responses=24,
        pause=1.5,
        at_once=16,
        apis=1,
        workers=2,
        maintenances=1,
        flower=False,
        in_turn=True,
        kinds=frozenset(SHOWN_BY[promise] for promise in promises),
        broken=promises[0] if broken else None,
        settle_seconds=5 if broken else 90,
    )
