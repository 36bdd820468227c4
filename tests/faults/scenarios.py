"""What scenarios of one fault share: requests whose answers are known, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import httpx

from app.store.database import StoreUnavailable
from app.store.responses import lookup
from app.store.rows import ResponseRow
from tests.faults.clients import text_of
from tests.faults.evidence import Evidence, gather, settled
from tests.faults.fleet import Fleet
from tests.faults.plan import Plan
from tests.faults.polling import with_pause
from tests.faults.streams import Streams
from tests.support.waiting import until

SECONDS = 90.0
SMALL = Plan(apis=1, workers=2, maintenances=1, flower=False)


async def answers(fleet: Fleet) -> bool:
    with suppress(StoreUnavailable):
        await fleet.db.ping()
        return True
    return False


async def found(fleet: Fleet, ids: Sequence[str]) -> list[ResponseRow]:
    return [row for name in ids if (row := await lookup.find(fleet.db, name)) is not None]


async def background(fleet: Fleet, prompt: str, model: str | None = None) -> str:
    body = {"model": model or fleet.plan.model, "input": prompt, "background": True}

    async def accepted() -> str | None:
        answer = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json=body)
        return answer.json()["id"] if answer.status_code == httpx.codes.OK else None

    response_id = await until(with_pause(accepted), SECONDS, "the POST is accepted")
    assert response_id is not None
    return response_id


async def ended(fleet: Fleet, ids: Sequence[str]) -> list[ResponseRow]:
    """The rows of these responses, once all are final."""

    async def final() -> list[ResponseRow]:
        rows = await found(fleet, ids)
        return rows if all(row.status.final for row in rows) else []

    return await until(with_pause(final), SECONDS, "all are final")


async def evidence_of(fleet: Fleet, streams: Streams) -> Evidence:
    """What remains when all streams were read to their end."""
    await streams.end()
    assert all(seen.terminal for seen in streams.seen.values())
    evidence = Evidence(streams.stories, unsettled=await settled(fleet, SECONDS))
    await gather(fleet, evidence)
    return evidence


def output_text(row: ResponseRow) -> str:
    return text_of({"output": row.output or []})
