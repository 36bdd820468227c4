"""A rolling upgrade to a version with another row layout and one column more, with work running, breaks no promise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson
import pytest
from sqlalchemy import text

from app.protocol.status import BatchStatus
from app.store.layout import LAYOUT
from tests.faults import audit
from tests.faults.audit import Transition
from tests.faults.driver import run
from tests.faults.fleet import Fleet, running
from tests.faults.member import Role
from tests.faults.plan import MODEL, WHOLE_SECONDS, Plan
from tests.faults.polling import with_pause
from tests.faults.process_faults import restart
from tests.support.next_version import NEXT_LAYOUT
from tests.support.waiting import until

pytestmark = pytest.mark.long

KINDS = frozenset({"worker: SIGTERM", "queue: messages repeated", "pubsub: events repeated"})


async def test_a_rolling_upgrade_under_load_loses_repeats_and_garbles_nothing() -> None:
    """Old and new workers, maintenance and APIs share one database and one Redis; the faults' checker judges.

    It finds a claim of an old worker that lowers a row's layout, too.
    """
    report = await run(Plan(upgrade=True, faults=4, responses=40, workers=2, maintenances=1, flower=False, kinds=KINDS))
    assert report.ok, "\n".join(report.lines())
    assert report.faults["fleet: upgraded"] == 1
    assert report.upgraded > 0, "no new worker ran what an old process had accepted or begun"


async def test_an_old_worker_beside_a_new_one_claims_no_line_that_the_new_version_accepted_and_all_lines_end() -> None:
    """In the end the old worker has free slots, while lines of the new version wait for the only new one."""
    plan = Plan(upgrade=True, apis=1, workers=2, maintenances=1, flower=False, concurrency=8)
    async with running(plan) as fleet:
        [api], [_, new_worker], [maintenance] = (fleet.of(role) for role in (Role.API, Role.WORKER, Role.MAINTENANCE))
        old = await batch(fleet, OLD_LINES)
        await until(with_pause(partial(are_accepted, fleet, old, OLD_LINES)), what="the old version accepts its lines")
        await fleet.upgrade()
        await restart(fleet, [new_worker, maintenance, api])
        new = await batch(fleet, 40)
        for batch_id, lines in ((old, OLD_LINES), (new, 40)):
            ended = await until(with_pause(partial(final, fleet, batch_id)), WHOLE_SECONDS, "the batch has ended")
            assert ended["request_counts"] == {"total": lines, "completed": lines, "failed": 0}
        steps = await audit.transitions(fleet.db)
        of_old = [claims(steps[each]) for each in await lines_of(fleet, old)]
        of_new = [claims(steps[each]) for each in await lines_of(fleet, new)]
        assert [step for each in steps.values() for step in audit.violations(each)] == []
        assert {each[0] for each in of_old} == {(LAYOUT, LAYOUT), (LAYOUT, NEXT_LAYOUT)}  # of both workers
        assert {claim for each in of_new for claim in each} == {(NEXT_LAYOUT, NEXT_LAYOUT)}


OLD_LINES = 240
"""More than two workers run until one of them is upgraded."""


async def batch(fleet: Fleet, lines: int) -> str:
    """Its id. A line takes a second and a half."""
    body = {"model": MODEL, "input": "/repeat 150 x"}
    sent = {"method": "POST", "url": "/v1/responses", "body": body}
    file = b"\n".join(orjson.dumps({"custom_id": str(number), **sent}) for number in range(lines))
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("lines.jsonl", file)}}
    uploaded = await fleet.http.post(f"{fleet.urls[0]}/v1/files", **form)
    asked = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    created = (await fleet.http.post(f"{fleet.urls[0]}/v1/batches", json=asked)).raise_for_status()
    return str(created.json()["id"])


async def lines_of(fleet: Fleet, batch_id: str) -> list[str]:
    """The responses that its lines became."""
    found = await fleet.db.execute(text("SELECT id FROM responses WHERE batch_id = :id"), {"id": batch_id})
    return [row.id for row in found]


async def are_accepted(fleet: Fleet, batch_id: str, lines: int) -> bool:
    return len(await lines_of(fleet, batch_id)) == lines


async def final(fleet: Fleet, batch_id: str) -> Any:
    shown = (await fleet.http.get(f"{fleet.urls[0]}/v1/batches/{batch_id}")).raise_for_status().json()
    return shown if BatchStatus(shown["status"]).final else None


def claims(steps: Sequence[Transition]) -> list[tuple[int, int]]:
    """The layout of the row before each claim, and after it: that of its worker."""
    return [(step.layout_before, step.layout) for step in steps if step.attempt_before not in (None, step.attempt)]
