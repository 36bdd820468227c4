"""The steps of a bulk retry: each response gets a new one with the same request, and stays as it is.

The new row names the old one in `retry_of`, and nothing else may: so two actions retry a response once, and a new
response that fails is retried by its own id. It runs in the background, because no client is attached to it, waits for
its turn like every other, and reserves of its project's limits. What had a completion window gets the same one anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import Row, text

from app.heavy import off_loop
from app.protocol.limits import LimitKind, LimitState, Shortage
from app.protocol.status import Status
from app.protocol.types import Json
from app.queue.message import Priority, class_of
from app.sizes import grouped
from app.store.database import Database, from_json
from app.store.operations import actions
from app.store.operations.actions import ActionRow, Progress, Step
from app.store.operations.filters import Place, window
from app.store.responses.endings import MAX_LOG_BYTES
from app.store.responses.inserts import reserve
from app.store.responses.new_rows import NewResponse, insert_waiting
from app.store.tenants import limits

STEP_ROWS = 200
RETRYABLE = (Status.FAILED, Status.CANCELLED)


class NotRetried(StrEnum):
    """Why a response is not retried."""

    NOT_STORED = "not_stored"
    """`store` was false: its request is kept for its own run alone."""
    NO_REQUEST = "no_request"
    """The response's stored request cannot be read."""
    NOT_AN_ANSWER = "not_an_answer"
    """The response compacted a conversation for a client that is gone."""
    ALREADY_RETRIED = "already_retried"
    LIMIT_REACHED = "limit_reached"
    """The project's limits have no room for it now."""


@dataclass(frozen=True, slots=True)
class OldResponse:
    """The columns that a new response takes from the one whose request it repeats."""

    id: str
    project: str
    model: str
    queue: str
    priority: int
    request: Json
    chain_length: int
    context_bytes: int
    conversation_bytes: int
    key_id: str | None
    queue_seconds: float | None
    run_seconds: float | None
    window_seconds: float | None
    ran_on: str | None
    context_length: int | None
    """Context of its model, in tokens. None: no worker tells it."""


Make = Callable[[OldResponse, Set[LimitKind]], NewResponse]
"""Makes the new response, of a project with such limits (app/responses/create/retried.py)."""

_LOCK = text(
    """
    SELECT r.id, r.project, r.model, r.queue, r.priority, r.store, r.chain_length, r.context_bytes, r.key_id,
        r.run_seconds, r.sent_to AS ran_on, CAST(r.request AS text) AS request,
        (SELECT min(w.context_length) FROM workers w WHERE w.queue = r.queue) AS context_length,
        CAST(extract(epoch FROM r.queue_deadline - r.inserted_at) AS float8) AS queue_seconds,
        CAST(extract(epoch FROM coalesce(
            (SELECT b.due_at - b.created_at FROM batches b WHERE b.id = r.batch_id), r.due_at - r.inserted_at
        )) AS float8) AS window_seconds,
        CAST(coalesce((
            SELECT sum(i.bytes) FROM conversation_items i WHERE i.conversation_id = r.conversation_id
        ), 0) AS bigint) AS conversation_bytes
    FROM responses r WHERE r.id = ANY(CAST(:ids AS text[])) AND r.finished_at IS NOT NULL
    ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED
    """
)
_RETRIED = text("SELECT retry_of FROM responses WHERE retry_of = ANY(CAST(:ids AS text[]))")
_PROJECTS = text("SELECT DISTINCT project FROM responses WHERE id = ANY(CAST(:ids AS text[]))")


async def steps(db: Database, seen: ActionRow, make: Make) -> AsyncGenerator[Step]:
    """Retries what is left of an action, as `cancels.steps` cancels."""
    only, statuses = seen.bounded, seen.only.status or (Status.FAILED,)
    while True:
        wanted = window(only, statuses, STEP_ROWS, seen.cursor, descending=False)
        rows = await db.execute(wanted.reading("r.request_bytes"), wanted.values)
        batch = _fitting(rows)
        ids = [row.id for row in batch if row.matches]
        async with db.begin(waits=True) as connection:
            if not await actions.lock(connection, seen):
                return
            projects = (await connection.execute(_PROJECTS, {"ids": ids})).scalars().all() if ids else []
            held = await limits.hold(connection, projects)
            locked = (await connection.execute(_LOCK, {"ids": ids})).all() if ids else []
            # A statement of its own: it sees what another action has committed before these were locked.
            retried = set((await connection.execute(_RETRIED, {"ids": ids})).scalars()) if ids else set()
            made = partial(_new, locked, retried, held.states, make)
            new, reasons = await off_loop(made, sum(row.request_bytes or 0 for row in batch))
            results = await reserve(connection, held, new, insert_waiting)
            reasons += [NotRetried.LIMIT_REACHED for result in results.values() if isinstance(result, Shortage)]
            at_end = len(batch) == len(rows) < STEP_ROWS
            cursor = None if at_end else Place(batch[-1].inserted_at, batch[-1].position)
            done, passed_by = len(locked) - len(reasons), len(ids) - len(locked)
            seen = await actions.note(connection, seen, Progress(cursor, done, passed_by, Counter(map(str, reasons))))
        yield Step(seen)
        if cursor is None:
            return


def _fitting(rows: Sequence[Row[Any]]) -> Sequence[Row[Any]]:
    """The first of the rows, as far as their requests are read together."""
    sizes = {number: row.request_bytes or 0 for number, row in enumerate(rows)}
    groups = grouped(sizes, MAX_LOG_BYTES)
    return rows[: len(groups[0])] if groups else rows


def _new(
    rows: Sequence[Row[Any]], retried: set[str], limits: Sequence[LimitState], make: Make
) -> tuple[list[NewResponse], list[NotRetried]]:
    """The new responses, and why there are no others."""
    new: list[NewResponse] = []
    refusals: list[NotRetried] = []
    for row in rows:
        request = from_json(row.request)
        if (refusal := _refusal(row, request, retried)) is not None:
            refusals.append(refusal)
            continue
        new.append(make(_old(row, request), {limit.kind for limit in limits if limit.project == row.project}))
    return new, refusals


def _old(row: Row[Any], request: Json) -> OldResponse:
    tier, _ = class_of(row.priority)
    in_window = row.window_seconds is not None
    own = {name: row._mapping[name] for name in OldResponse.__slots__ if name not in ("request", "priority")}
    request = {**request, "background": True}
    return OldResponse(**own, request=request, priority=Priority.of(tier, background=True, in_window=in_window))


def _refusal(row: Row[Any], request: Any, retried: set[str]) -> NotRetried | None:
    if row.id in retried:
        return NotRetried.ALREADY_RETRIED
    if not row.store:
        return NotRetried.NOT_STORED
    if not isinstance(request, dict) or not isinstance(request.get("input"), list):
        return NotRetried.NO_REQUEST
    return NotRetried.NOT_AN_ANSWER if request.get("task") is not None else None
