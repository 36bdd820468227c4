"""Promises that can be switched off in real processes (`broken/sitecustomize.py`), and the plans that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.faults.plan import Plan


@dataclass(frozen=True, slots=True)
class Break:
    """A promise that is switched off."""

    fault: str
    """The kind that shows its absence."""
    rule: str
    """The rule that must notice, with these words. Others may notice, too."""
    words: str
    times: int = 2
    of_batches: bool = False


BREAKS: Mapping[str, Break] = {
    # a worker's write takes effect only while the worker owns the response
    "fence": Break("worker: stopped beyond its lease", "only_owners_write_chunks", "was written while"),
    # a response is claimed only when no worker owns it
    "claim": Break("queue: messages repeated", "transitions_are_legal", "was claimed while"),
    # readers get a chunk after its commit
    "publish-after-commit": Break(
        "network: worker and postgres, beyond its lease", "durable_before_visible", "before its commit"
    ),
    # a response of a batch stays that of its line, whoever takes it over (who is killed may have ended its lines)
    "line": Break("batch: worker killed with its lines", "every_line_has_one_result", "", 5, of_batches=True),
    # results are written into a batch's files once, however many copies of maintenance do so
    "write-once": Break("batch: maintenance killed in a step", "files_are_what_the_rows_say", "", of_batches=True),
}


def plan_for(*promises: str) -> Plan:
    """A short run that needs each of these promises a few times, with all of them switched off."""
    breaks = [BREAKS[promise] for promise in promises]
    batched = any(each.of_batches for each in breaks)
    return Plan(
        seed=11,
        faults=sum(each.times for each in breaks),
        responses=24,
        batches=4 if batched else 0,
        pause=1.5,
        at_once=16,
        apis=1,
        workers=2,
        maintenances=2 if batched else 1,
        flower=False,
        in_turn=True,
        kinds=frozenset(each.fault for each in breaks),
        broken=promises,
        settle_seconds=90 if "write-once" in promises else 5,  # there, everything ends
    )
