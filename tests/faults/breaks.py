"""Promises that can be switched off in real processes (`broken/sitecustomize.py`), and the plans that show it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.plan import Plan

SHOWN_BY: Mapping[str, str] = {
    "fence": "worker: stopped beyond its lease",
    "claim": "queue: messages repeated",
    "publish": "network: worker and postgres, beyond its lease",
    "ring": "valkey: killed",
    "hear": "valkey: killed",
}
"""A promise, and the fault under which its absence shows.

    fence     what a worker writes takes effect only while it owns the response
    claim     a response is claimed only when nobody owns it
    publish   readers are told after the commit
    ring      a worker publishes again once Redis is back
    hear      an API hears again once Redis is back
"""


def breaking(*promises: str, broken: bool = True) -> Plan:
    """A short run in which these promises are needed, twice each. With `broken` the first is switched off."""
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
