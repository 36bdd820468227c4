"""Whether `/metrics` of each process shows what the rows say: when everything has ended, and while responses wait.

Counters end with their process, so gauges are compared alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpx
from sqlalchemy import text

from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role
from tests.faults.plan import LEASE_SECONDS
from tests.support.scrapes import UNFINISHED, Scrape, responses_by_state, unfinished_responses
from tests.support.waiting import until

SECONDS = 30.0
"""How long the rows may take to stand still, and the gauges to follow."""
WAITING = 3
"""So many times more responses than the workers have slots."""
HANGING = "/hang 3"
"""Text without end would keep a busy machine from ever standing still."""
TIERS = ("default", "flex", "priority")
SLACK_SECONDS = 2.0
"""Between the look at the rows and the scrape."""
_WAITING = text(
    "SELECT project, count(*) AS number FROM responses WHERE finished_at IS NULL AND sent_at IS NULL"
    " AND (status = 'queued' OR yielded) GROUP BY project"
)
_OLDEST = text(
    "SELECT extract(epoch FROM max(now() - inserted_at))::float8 AS age FROM responses WHERE status = 'queued'"
)
_CRASHED = text("SELECT count(*) AS number FROM responses WHERE finished_at IS NULL AND crashes > 0")
_WORKERS = text(
    "SELECT w.node, w.slots, (SELECT count(*) FROM responses r WHERE r.worker = w.id AND r.status = 'in_progress')"
    " AS running FROM workers w WHERE w.lease_until > now() ORDER BY w.node"
)
_HELD = ("longhaul_bound_held", "longhaul_bound_held_bytes")
_NEVER = ("drains", "paused", "lines_in_files", "reclaimable_log_bytes", "log_overdue_seconds")
"""What no run has, or none that is at its end."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rows say."""

    states: dict[tuple[str, ...], int]
    """Unfinished responses by tier, mode and state."""
    waiting: dict[str, int]
    """By project."""
    crashed: int
    workers: tuple[tuple[str, int, int], ...]
    """Node, slots, and what it runs."""


async def differences(fleet: Fleet) -> list[str]:
    """Gauges that are not what the rows say, in a whole and idle fleet; in the end all is as it was."""
    found = await _settled(fleet, "at rest")
    http, url = fleet.http, f"{fleet.urls[0]}/v1/responses"
    body = {"model": fleet.plan.model, "input": HANGING, "background": True}
    count = WAITING * fleet.plan.concurrency * len(fleet.of(Role.WORKER))
    made: list[str] = []
    try:
        for number in range(min(count, 200)):
            answer = await http.post(url, json=body | {"service_tier": TIERS[number % len(TIERS)]})
            made.append(answer.raise_for_status().json()["id"])
        found += await _settled(fleet, f"with {len(made)} unfinished responses", len(made))
    except httpx.HTTPError as error:
        found.append(f"with responses: {type(error).__name__}: {error}")
    finally:
        for response_id in made:
            with suppress(httpx.HTTPError):
                await http.post(f"{url}/{response_id}/cancel")
    return found + await _settled(fleet, "at rest again")


async def _settled(fleet: Fleet, when: str, unfinished: int = 0) -> list[str]:
    """The differences at the first moment at which there are none and the rows stand still, or at the last one."""
    found = ["nothing was compared"]

    async def equal() -> bool:
        nonlocal found
        before, oldest = await _facts(fleet), await _oldest(fleet)
        scrapes = {member: await _scrape(member) for member in fleet.members if member.metrics}
        after = await _facts(fleet)
        if before == after and sum(before.states.values()) == unfinished:
            found = list(find_differences(before, oldest, scrapes))
        else:
            found = [f"the rows do not stand still, or not with {unfinished} unfinished: {before}, then {after}"]
        if found:
            await asyncio.sleep(0.2)
        return not found

    with suppress(AssertionError):
        await until(equal, SECONDS)
    return [f"{when}: {each}" for each in found]


async def _facts(fleet: Fleet) -> Facts:
    states = responses_by_state(
        (row.priority, row.state, row.count) for row in await fleet.db.execute(text(UNFINISHED))
    )
    (crashed,) = await fleet.db.execute(_CRASHED)
    waiting = {row.project: row.number for row in await fleet.db.execute(_WAITING)}
    workers = tuple((row.node, row.slots, row.running) for row in await fleet.db.execute(_WORKERS))
    return Facts(states, waiting, crashed.number, workers)


async def _oldest(fleet: Fleet) -> float:
    """Seconds that the oldest queued response has waited; 0: none waits."""
    (row,) = await fleet.db.execute(_OLDEST)
    return row.age or 0.0


async def _scrape(member: Member) -> Scrape | None:
    try:
        async with httpx.AsyncClient(timeout=10, verify=False) as http:
            return Scrape.of((await http.get(member.metrics)).raise_for_status().text)
    except httpx.HTTPError:
        return None


Pair = tuple[str, object, object]
"""What is shown, what a scrape says of it, and what the rows say."""


def find_differences(facts: Facts, oldest: float, scrapes: Mapping[Member, Scrape | None]) -> Iterator[str]:
    """What processes show and the rows do not say. `oldest`: seconds that the oldest queued response has waited."""
    for member, scrape in scrapes.items():
        if scrape is None:
            yield f"{member.name} shows no metrics"
            continue
        for what, shown, expected in _pairs(member.role, facts, oldest, scrape):
            if shown != expected:
                yield f"{member.name} shows {what} {shown}, and it is {expected}"


def _pairs(role: Role, facts: Facts, oldest: float, scrape: Scrape) -> Iterator[Pair]:
    match role:
        case Role.MAINTENANCE:
            yield from _of_fleet(facts, oldest, scrape)
        case Role.WORKER:
            yield from _of_worker(facts, scrape)
        case _:
            held = {name: scrape.value(name) - scrape.value(name, bound="connections") for name in _HELD}
            yield "what is held of bounds", held, dict.fromkeys(_HELD, 0)


def _of_fleet(facts: Facts, oldest: float, scrape: Scrape) -> Iterator[Pair]:
    def value(name: str, **labels: str) -> float:
        return scrape.value(f"longhaul_fleet_{name}", **labels)

    yield "up", value("up"), 1
    yield "responses", unfinished_responses(scrape), facts.states
    by_project = scrape.families["longhaul_fleet_waiting_by_project"].samples
    yield "what waits", {each.labels["project"]: each.value for each in by_project if each.value}, facts.waiting
    yield "suspects", value("suspects"), facts.crashed
    yield "workers", (value("workers"), value("workers", state="ready")), (len(facts.workers),) * 2
    yield "slots", value("slots"), sum(slots for _, slots, _ in facts.workers)
    yield "the rest", {name: value(name) for name in _NEVER}, dict.fromkeys(_NEVER, 0)
    leases = scrape.families["longhaul_fleet_lease_seconds"].samples
    yield "whether leases are valid", all(0 < each.value <= LEASE_SECONDS for each in leases), True
    ages = [each.value for each in scrape.families["longhaul_fleet_oldest_queued_seconds"].samples]
    yield "the age of the oldest", 0 <= max(ages) - oldest < SLACK_SECONDS and (max(ages) > 0) is (oldest > 0), True


def _of_worker(facts: Facts, scrape: Scrape) -> Iterator[Pair]:
    (info,) = scrape.families["longhaul_worker_info"].samples
    known = {node: (slots, running) for node, slots, running in facts.workers}
    shown = scrape.value("longhaul_worker_slots"), scrape.value("longhaul_worker_running_responses")
    yield f"slots and responses of {info.labels['worker']}", shown, known.get(info.labels["worker"])
    parts = (scrape.value(f"longhaul_worker_{name}_responses") for name in ("generating", "waiting"))
    yield "what generates or waits in it", sum(parts), shown[1]
