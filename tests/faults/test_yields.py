"""Long background responses in every slot, then streams: some yield, and a kill -9 meanwhile breaks nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace

import httpx
import pytest
from sqlalchemy import text

from app.protocol.status import Status
from tests.faults import audit
from tests.faults.fleet import Fleet, running
from tests.faults.polling import with_pause
from tests.faults.questions import counting
from tests.faults.scenarios import SECONDS, SMALL, background, ended, output_text
from tests.support.waiting import until

PLAN = replace(SMALL, concurrency=4)
"""Each of two workers has a slot for foreground places, and another one where background yields."""
NUMBERS = 400


@pytest.mark.long
async def test_background_yields_to_streams_and_ends_once_also_if_its_worker_is_killed() -> None:
    async with running(PLAN) as fleet:
        ids = [await background(fleet, f"/count {NUMBERS}") for _ in range(7)]
        await until(with_pause(fleet.busiest), SECONDS, "a worker is at work")
        await until(with_pause(lambda: all_are_steady(fleet)), SECONDS, "every slot is taken by what may yield")
        streams = [asyncio.create_task(answer(fleet)) for _ in range(4)]
        pid = await until(with_pause(lambda: worker_of_a_yield(fleet, ids)), SECONDS, "a response yields")
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.gather(*streams) == [counting(NUMBERS // 2).answer] * len(streams)
        rows = await ended(fleet, ids)
        steps = await audit.transitions(fleet.db, ids)
        assert [found for each in ids for found in audit.violations(steps[each])] == []
    assert [row.status for row in rows] == [Status.COMPLETED] * len(ids), [row.error for row in rows]
    assert [output_text(row) for row in rows] == [counting(NUMBERS).answer] * len(ids)
    assert sum(row.yields for row in rows) >= 1
    assert max(row.crashes for row in rows) <= 1, "a yield is no crash"


async def all_are_steady(fleet: Fleet) -> bool:
    running_ = "status = 'in_progress' AND worker IS NOT NULL AND started_at < now() - interval '5.2 seconds'"
    async with fleet.db.autocommit() as connection:
        found = await connection.execute(text(f"SELECT count(*) FROM responses WHERE {running_}"))
        return bool(found.scalar_one() >= 6)


async def worker_of_a_yield(fleet: Fleet, ids: Sequence[str]) -> int | None:
    """The pid of the worker whose response has yielded, if one has."""
    owner = "SELECT w.pid FROM workers w WHERE w.lease_until > now() AND EXISTS (SELECT FROM responses r WHERE "
    foreground = "r.worker = w.id AND r.foreground_place)"
    some = "SELECT true FROM responses WHERE yields > 0 AND id = ANY(:ids) LIMIT 1"
    async with fleet.db.autocommit() as connection:
        if not (await connection.execute(text(some), {"ids": list(ids)})).scalar_one_or_none():
            return None
        pid: int | None = (await connection.execute(text(f"{owner}{foreground} LIMIT 1"))).scalar_one_or_none()
        return pid


async def answer(fleet: Fleet) -> str:
    body = {"model": fleet.plan.model, "input": f"/count {NUMBERS // 2}"}
    done = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json=body, timeout=httpx.Timeout(SECONDS))
    assert done.status_code == httpx.codes.OK, done.text
    return "".join(part["text"] for item in done.json()["output"] for part in item.get("content", ()))
