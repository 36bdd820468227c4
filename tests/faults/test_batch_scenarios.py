"""Batches, while each kind of process is killed at each of their stages."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from tests.faults import batches
from tests.faults.clients import text_of
from tests.faults.fleet import Fleet, running
from tests.faults.member import Role
from tests.faults.plan import Plan
from tests.faults.questions import counting
from tests.faults.scenarios import SECONDS
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

LINES = 1500
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


async def reached(fleet: Fleet, batch_id: str, holds: Callable[[Any], bool], what: str) -> None:
    async def look() -> bool:
        return holds(await batches.row(fleet, batch_id))

    await until(look, BATCH_SECONDS, what)


STAGES: list[tuple[str, Callable[[Any], bool], Role]] = [
    ("it is validated", lambda row: row.validating_until is not None, Role.MAINTENANCE),
    ("some lines are responses", lambda row: row.expanded > 0, Role.MAINTENANCE),
    ("some results are numbered", lambda row: row.numbered > 0, Role.MAINTENANCE),
    ("a third has ended", lambda row: row.numbered > LINES // 3, Role.WORKER),
    ("some results are written", lambda row: row.written > 0, Role.MAINTENANCE),
    ("half has ended", lambda row: row.numbered > LINES // 2, Role.API),
    ("all have ended", lambda row: row.numbered == LINES, Role.MAINTENANCE),
]


async def test_every_line_has_one_result_whoever_is_killed_at_whatever_stage(fleet: Fleet) -> None:
    await fleet.wait_until_whole(SECONDS)
    prompts = {f"line-{number}": f"/count {NUMBERS}" for number in range(LINES)}
    batch_id = await batches.create(fleet, batches.file_of(fleet, prompts))
    following = asyncio.create_task(batches.followed(fleet, batch_id))
    try:
        for what, holds, role in STAGES:
            await reached(fleet, batch_id, holds, what)
            kill(fleet, role)
        batch = await batches.ended(fleet, batch_id, BATCH_SECONDS)
        seen = await asyncio.wait_for(following, SECONDS)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    assert (batch["status"], batch["error_file_id"]) == ("completed", None)
    assert await batches.violations(fleet, batch, prompts) == []
    assert [each["number"] for each in seen[:-1]] == list(range(1, LINES + 1))
    assert sorted(each["custom_id"] for each in seen[:-1]) == sorted(prompts)
    answers = {text_of(each["response"]["body"]) for each in seen[:-1]}
    assert answers == {counting(NUMBERS).answer}


async def test_a_cancelled_batch_has_every_line_once_whoever_is_killed_meanwhile(fleet: Fleet) -> None:
    await fleet.wait_until_whole(SECONDS)
    prompts = {f"line-{number}": f"/count {50 * NUMBERS}" for number in range(LINES)}
    batch_id = await batches.create(fleet, batches.file_of(fleet, prompts))
    await reached(fleet, batch_id, lambda row: row.expanded > 0 and row.numbered > 0, "some have ended")
    await fleet.http.post(f"{fleet.urls[0]}/v1/batches/{batch_id}/cancel")
    numbered = (await batches.row(fleet, batch_id)).numbered
    kill(fleet, Role.MAINTENANCE)
    await reached(fleet, batch_id, lambda row: row.numbered > numbered or row.written > 0, "lines are ended")
    kill(fleet, Role.MAINTENANCE)
    kill(fleet, Role.WORKER)
    batch = await batches.ended(fleet, batch_id, BATCH_SECONDS)
    assert batch["status"] == "cancelled"
    assert 0 < batch["request_counts"]["completed"] < LINES
    assert await batches.violations(fleet, batch, prompts) == []
