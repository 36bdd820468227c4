"""Batches, while each kind of process is killed at each of their stages."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import text

from app.protocol.requests.bodies.batch import RESPONSES
from tests.faults import batch_rules
from tests.faults.batch_clients import BatchClient
from tests.faults.evidence import Evidence, gather, settled
from tests.faults.fleet import Fleet, running
from tests.faults.member import Role
from tests.faults.plan import Plan
from tests.faults.questions import counting
from tests.faults.records import BatchStory
from tests.faults.scenarios import SECONDS
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

LINES = 2500
"""More than are responses at a time."""
BATCH_SECONDS = 400.0
"""Each kill of maintenance costs a start of Python, and of one that validates its claim (30 s)."""
NUMBERS = 12
PLAN = Plan(apis=1, workers=2, maintenances=2, flower=False, tokens_per_delta=20, tokens_per_second=200.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running(PLAN) as started:
        yield started


def kill(fleet: Fleet, role: Role) -> None:
    for member in fleet.of(role):
        member.signal(signal.SIGKILL)


async def row(fleet: Fleet, story: BatchStory) -> Any:
    (found,) = await fleet.db.execute(text("SELECT * FROM batches WHERE id = :id"), {"id": story.batch_id})
    return found


async def reached(fleet: Fleet, story: BatchStory, holds: Callable[[Any], bool], what: str) -> None:
    async def look() -> bool:
        return holds(await row(fleet, story))

    await until(look, BATCH_SECONDS, what)


async def created(fleet: Fleet, numbers: int) -> tuple[BatchStory, BatchClient]:
    """A batch whose lines count so far."""
    lines = {f"{numbers}-line-{number}": counting(numbers) for number in range(LINES)}
    story = BatchStory(f"counting to {numbers}", RESPONSES, "24h", lines)
    client = BatchClient(fleet.http, fleet.urls, story, Random(1))
    await client.create()
    return story, client


async def findings(fleet: Fleet, story: BatchStory) -> list[tuple[str, str]]:
    """What does not hold of the batches that have ended."""
    evidence = Evidence([], batch_stories=[story], unsettled=await settled(fleet, SECONDS))
    await gather(fleet, evidence)
    return [finding for rule in batch_rules.RULES for finding in rule(evidence)]


STAGES: list[tuple[str, Callable[[Any], bool], Role]] = [
    ("it is validated", lambda row: row.validating_until is not None, Role.MAINTENANCE),
    ("some lines are responses", lambda row: row.expanded > 0, Role.MAINTENANCE),
    ("some results are numbered", lambda row: row.numbered > 0, Role.MAINTENANCE),
    ("others wait in the file", lambda row: row.numbered > 0 and row.expanded < LINES, Role.MAINTENANCE),
    ("a third has ended", lambda row: row.numbered > LINES // 3, Role.WORKER),
    ("some results are written", lambda row: row.written > 0, Role.MAINTENANCE),
    ("half has ended", lambda row: row.numbered > LINES // 2, Role.API),
    ("all have ended", lambda row: row.numbered == LINES, Role.MAINTENANCE),
]


async def test_every_line_has_one_result_whoever_is_killed_at_whatever_stage(fleet: Fleet) -> None:
    await fleet.wait_until_whole(SECONDS)
    story, client = await created(fleet, NUMBERS)
    following = asyncio.create_task(client.follow())
    try:
        for what, holds, role in STAGES:
            await reached(fleet, story, holds, what)
            kill(fleet, role)
        await asyncio.wait_for(client.end(), BATCH_SECONDS)
        await asyncio.wait_for(following, SECONDS)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    assert [each["number"] for each in story.seen[:-1]] == list(range(1, LINES + 1))
    assert story.polls[-1]["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    assert await findings(fleet, story) == []


async def test_a_cancelled_batch_has_every_line_once_whoever_is_killed_meanwhile(fleet: Fleet) -> None:
    await fleet.wait_until_whole(SECONDS)
    story, client = await created(fleet, 50 * NUMBERS)
    await reached(fleet, story, lambda row: row.expanded > 0 and row.numbered > 0, "some have ended")
    await client.cancel()
    numbered = (await row(fleet, story)).numbered
    kill(fleet, Role.MAINTENANCE)
    await reached(fleet, story, lambda row: row.numbered > numbered or row.written > 0, "lines are ended")
    kill(fleet, Role.MAINTENANCE)
    kill(fleet, Role.WORKER)
    await asyncio.wait_for(client.end(), BATCH_SECONDS)
    batch = story.polls[-1]
    assert batch["status"] == "cancelled"
    assert 0 < batch["request_counts"]["completed"] < LINES
    assert await findings(fleet, story) == []
