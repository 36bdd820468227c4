"""One run: a fleet under load and faults; then, when all responses are final, the checker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from httpx import codes

from tests.faults import checker
from tests.faults.evidence import Evidence, gather, settled
from tests.faults.fleet import Fleet, running, stop
from tests.faults.load import Load
from tests.faults.plan import Plan
from tests.faults.proxy import Mode
from tests.faults.report import Report
from tests.faults.schedule import Schedule

PROGRESS_SECONDS = 15.0

Say = Callable[[str], None]


async def run(plan: Plan, say: Say = lambda _: None) -> Report:
    """Performs the plan and reports what the checker found. Raises only if the suite itself cannot continue."""
    began, report = time.monotonic(), Report(plan.seed)
    async with running(plan) as fleet:
        say(f"the fleet is ready; its logs are in {fleet.folder}")
        schedule = Schedule(plan, fleet)
        headers = [each.headers for each in fleet.tenants.projects] if fleet.tenants else [{}]
        load = Load(plan, fleet.urls, headers)
        evidence = Evidence(load.stories, batch_stories=load.batches, crashes=schedule.crashes)
        progress = asyncio.create_task(_progress(plan, load, schedule, say))
        try:
            await _disturb(plan, fleet, load, schedule)
            evidence.unsettled += await settled(fleet, plan.settle_seconds)
            say("all responses have ended; collecting the evidence")
            await gather(fleet, evidence)
        finally:
            progress.cancel()
            history = [*schedule.history, *schedule.failures]
            (fleet.folder / "faults.log").write_text("\n".join(history), encoding="utf-8")
        evidence.error_lines = [f"{member.name}: {line}" for member in fleet.members for line in member.error_lines]
        await stop(fleet)
        evidence.left_behind = fleet.left_behind()
    report.violations = checker.check(evidence)
    report.error_lines = evidence.error_lines
    _count(report, load, schedule, evidence)
    report.seconds = time.monotonic() - began
    return report


async def _disturb(plan: Plan, fleet: Fleet, load: Load, schedule: Schedule) -> None:
    """Runs load and faults until both are done, repairs everything, and waits for the clients."""
    enough = asyncio.Event()
    loading = asyncio.create_task(load.run(plan.faults * plan.pause, enough))
    try:
        await schedule.run()
        await _heal(fleet)
        enough.set()
        await loading
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)


async def _heal(fleet: Fleet) -> None:
    await asyncio.to_thread(fleet.services.heal)
    for member in fleet.members:
        member.postgres.set(Mode.OPEN)
        member.redis.set(Mode.OPEN)
        if member.front is not None:
            member.front.set(Mode.OPEN)
        if member.clock is not None:
            member.clock.shift(0)
    await fleet.wait_until_whole()


async def _progress(plan: Plan, load: Load, schedule: Schedule, say: Say) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        ended, batches = (sum(story.ended > 0 for story in stories) for stories in (load.stories, load.batches))
        faults = schedule.inflicted.total()
        say(
            f"{time.monotonic() - began:5.0f} s: {faults} of {plan.faults} faults, "
            f"{ended} of {max(plan.responses, len(load.stories))} clients have their answer, "
            f"{batches} of {len(load.batches)} their batch"
        )


def _count(report: Report, load: Load, schedule: Schedule, evidence: Evidence) -> None:
    report.faults, report.failures = schedule.inflicted, schedule.failures
    steps = evidence.transitions.values()  # of deleted responses and of those whose POST lost its answer, too
    statuses = Counter(row.status.value for row in evidence.rows.values())
    statuses["deleted"] = len(steps) - len(evidence.rows)
    events = sum(chunks[-1].last + 1 for chunks in evidence.logs.values() if chunks)
    readers = [seen.connections for story in load.stories for seen in story.readers]
    refused = sum(story.posts.count(str(int(codes.TOO_MANY_REQUESTS))) for story in load.stories)
    followed = [each.connections for each in load.batches if each.connections]
    batches = Counter(each.row.status.value for each in evidence.batches.values())
    results = Counter(line.status for each in evidence.batches.values() for line in each.results)
    takeovers = sum(max(0, each[-1].attempt - 1) for each in steps)
    report.upgraded = sum(any(step.layout > step.layout_before > 0 for step in each) for each in steps)
    report.counts = [
        f"{len(steps):6} responses: {_named(statuses)}; {_named(Counter(each.form.value for each in load.stories))}",
        f"{events:6} events; {len(readers)} readers resumed {sum(readers) - len(readers)} times",
        f"{batches.total():6} batches: {_named(batches)}",
        f"{results.total():6} results of lines: {_named(results)}; {len(followed)} readers in {sum(followed)} parts",
        f"{takeovers:6} takeovers, {sum(row.yields for row in evidence.rows.values())} of them after a yield",
        f"{refused:6} requests were refused by limits and repeated",
        f"{report.upgraded:6} responses of the version before were run by the next one",
    ]


def _named(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counter.most_common())
