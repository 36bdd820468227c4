"""A rolling upgrade to a version with another row layout and one column more, with work running, breaks no promise."""

from __future__ import annotations

import signal
from functools import partial

import httpx
import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.store.responses import lookup
from tests.faults.driver import run
from tests.faults.fleet import Fleet, running
from tests.faults.member import Member, Role
from tests.faults.plan import MODEL, Plan
from tests.faults.polling import with_pause
from tests.support.next_version import COLUMN, NEXT_LAYOUT
from tests.support.waiting import until

pytestmark = pytest.mark.long

KINDS = frozenset({"worker: SIGTERM", "queue: messages repeated", "pubsub: events repeated"})
SECONDS = 90.0


async def test_a_rolling_upgrade_under_load_loses_repeats_and_garbles_nothing() -> None:
    """Old and new workers, maintenance and APIs share one database and one Redis; the faults' checker judges.

    It finds a claim of an old worker that lowers a row's layout, too.
    """
    report = await run(Plan(upgrade=True, faults=4, responses=40, workers=2, maintenances=1, flower=False, kinds=KINDS))
    assert report.ok, "\n".join(report.lines())
    assert report.faults["fleet: upgraded"] == 1
    assert report.upgraded > 0, "no new worker ran what an old process had accepted or begun"


async def test_old_workers_leave_what_a_new_api_accepted_to_a_new_worker() -> None:
    """The wrong order: the API before the worker."""
    async with running(Plan(upgrade=True, apis=1, workers=1, maintenances=1, flower=False)) as fleet:
        [api], [worker] = fleet.of(Role.API), fleet.of(Role.WORKER)
        await fleet.upgrade()
        await restart(api)
        response_id = await until(with_pause(partial(accepted, fleet)), SECONDS, "the new API accepts a request")
        await until(with_pause(partial(was_sent_again, fleet, response_id)), SECONDS, "the old worker got its message")
        row = await lookup.find(fleet.db, response_id)
        assert row is not None
        assert (row.status, row.attempt) == (Status.QUEUED, 0)
        answer = await fleet.http.get(f"{api.address}/health/ready")
        assert (answer.status_code, answer.json()["missing"]) == (200, ["workers"])

        await restart(worker)
        await until(with_pause(partial(completed, fleet, response_id)), SECONDS, "a new worker runs it")
        async with fleet.db.autocommit() as connection:
            found = await connection.execute(
                text(f"SELECT layout, {COLUMN} FROM responses WHERE id = :id"), {"id": response_id}
            )
            assert tuple(found.one()) == (NEXT_LAYOUT, True)


async def restart(member: Member) -> None:
    starts = member.starts
    member.signal(signal.SIGTERM)
    await until(lambda: member.starts > starts, SECONDS, f"{member.name} is back")


async def accepted(fleet: Fleet) -> str | None:
    body = {"model": MODEL, "input": "/count 3", "background": True}
    try:
        answer = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json=body)
    except httpx.TransportError:
        return None
    return answer.json()["id"] if answer.status_code == httpx.codes.OK else None


async def was_sent_again(fleet: Fleet, response_id: str) -> bool:
    """Whether maintenance found its list empty, so that the worker has taken the first message."""
    async with fleet.db.autocommit() as connection:
        found = await connection.execute(text("SELECT sends FROM responses WHERE id = :id"), {"id": response_id})
        return bool(found.scalar_one() > 1)


async def completed(fleet: Fleet, response_id: str) -> bool:
    row = await lookup.find(fleet.db, response_id)
    return row is not None and row.status is Status.COMPLETED
