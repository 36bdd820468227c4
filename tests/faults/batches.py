"""Batches whose clients are gone: what an API process shows of each, its files, and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import httpx
import orjson
from sqlalchemy import text

from app.store.batches import rows
from app.store.batches.results import Order, ResultRow, read_results
from app.store.batches.rows import BatchRow
from app.store.database import Database
from tests.faults import audit
from tests.faults.batch_clients import FILES
from tests.faults.fleet import Fleet
from tests.faults.records import Json

_IDS = text("SELECT id, project FROM batches ORDER BY created_at")
_LINES = text("SELECT id, batch_line FROM responses WHERE batch_id = :id")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that has ended."""

    row: BatchRow
    shown: Json
    """As clients see it."""
    names: Sequence[str]
    """The `custom_id` of each line of its file; an empty one if it has none."""
    responses: Sequence[tuple[int, str]]
    """The line and the id of each response that a line became."""
    results: Sequence[ResultRow]
    """In the order of lines."""
    changes: Mapping[int, Sequence[str]]
    """What became of each line's result (`audit.results`)."""
    files: Mapping[str, bytes]
    """`output` and `error`, if they are there."""
    followed: bytes
    """What a reader of its results gets from the first one on."""


async def gather(fleet: Fleet) -> dict[str, Batch]:
    """All batches. Call it when all have ended, and all processes run."""
    changes = await audit.results(fleet.db)
    ids = await fleet.db.execute(_IDS)
    async with httpx.AsyncClient(base_url=fleet.urls[0], timeout=30, verify=False) as http:
        return {
            each.id: await _batch(fleet.db, http, each.id, fleet.headers_of(each.project), changes.get(each.id, {}))
            for each in ids
        }


async def _batch(
    db: Database,
    http: httpx.AsyncClient,
    batch_id: str,
    headers: Mapping[str, str],
    changes: Mapping[int, Sequence[str]],
) -> Batch:
    async def read(path: str) -> bytes:
        return (await http.get(path, headers=headers)).raise_for_status().content

    shown = orjson.loads(await read(f"/v1/batches/{batch_id}"))
    files = {kind: name for kind in FILES if (name := shown[f"{kind}_file_id"]) is not None}
    row = await rows.find(db, None, batch_id)
    assert row is not None
    lines = (await read(f"/v1/files/{row.input_file}/content")).splitlines()
    places = await rows.places(db, batch_id, 0, len(lines)) or range(len(lines) + 1)
    return Batch(
        row,
        shown,
        [_name_of(lines[place - 1]) for place in places[1:]],
        [(each.batch_line, each.id) for each in await db.execute(_LINES, {"id": batch_id})],
        await _results(db, batch_id),
        changes,
        {kind: await read(f"/v1/files/{name}/content") for kind, name in files.items()},
        await read(f"/v1/batches/{batch_id}/results") if row.status.final else b"",
    )


async def _results(db: Database, batch_id: str) -> list[ResultRow]:
    found: list[ResultRow] = []
    while page := await read_results(db, batch_id, found[-1].line if found else 0, Order.LINE):
        found += page
    return found


def _name_of(line: bytes) -> str:
    with suppress(orjson.JSONDecodeError):
        return str(orjson.loads(line).get("custom_id", ""))
    return ""
