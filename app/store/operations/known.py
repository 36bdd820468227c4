"""One response, as operators ask for it: all that its row and its log know besides its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.protocol.hosted_kinds import HOSTED_KINDS
from app.protocol.item_types import MCP_LIST_TOOLS
from app.store.database import Database
from app.store.operations.listing import COLUMNS, ListedResponse

_TYPES = ", ".join(f"'{name}'" for name in (MCP_LIST_TOOLS, *(kind.call_type for kind in HOSTED_KINDS)))


@dataclass(frozen=True, slots=True)
class HandedOver:
    """An attempt that handed the response over."""

    attempt: int
    worker: str
    began_at: datetime | None
    ended_at: datetime
    how: str
    """A HandOver, or what a newer version calls one."""


@dataclass(frozen=True, slots=True)
class KnownResponse(ListedResponse):
    read_at: datetime
    """When it was read, by the clock of Postgres, as all times."""
    project_name: str | None
    request_id: str | None
    traceparent: str | None
    sends: int
    claimed_at: datetime | None
    """When its last attempt claimed it."""
    yielded: bool
    layout: int
    queue_deadline: datetime | None
    run_deadline: datetime | None
    before: int
    """How many wait before it in its flow."""
    history: Sequence[HandedOver]
    retried_by: str | None
    """The response that repeats its request."""

    @property
    def waits(self) -> bool:
        """Whether it is in line for a dispatch."""
        in_line = self.status == "queued" or (self.status == "in_progress" and self.yielded and self.worker is None)
        return in_line and self.sent_at is None

    def seconds_since(self, at: datetime | None) -> float | None:
        return None if at is None else (self.read_at - at).total_seconds()

    def seconds_until(self, at: datetime | None) -> float | None:
        return None if at is None else (at - self.read_at).total_seconds()


_KNOWN = text(
    f"""
    SELECT {COLUMNS}, now() AS read_at, (SELECT p.name FROM projects p WHERE p.id = r.project) AS project_name,
        r.request_id, r.traceparent, r.sends, r.claimed_at, r.yielded, r.layout, r.queue_deadline, r.run_deadline,
        (SELECT count(*) FROM waiting_responses o JOIN waiting_responses w
            ON w.queue = o.queue AND w.project = o.project AND w.priority = o.priority
                AND (w.rank, w.position) < (o.rank, o.position)
            WHERE o.id = r.id) AS before,
        r.history, (SELECT n.id FROM responses n WHERE n.retry_of = r.id) AS retried_by
    FROM responses r WHERE r.id = :id
    """
)
# A name may hold U+0000, which `->>` refuses.
_CALLS_OF_ENDED = text(
    f"""
    SELECT i.number, i.item->>'type' AS type, i.item->'name' AS tool, i.item->'server_label' AS server,
        i.item->>'status' AS status, CAST(i.item->'error' AS text) <> 'null' AS has_failed
    FROM responses r, json_array_elements(r.output) WITH ORDINALITY AS i(item, number)
    WHERE r.id = :id AND i.item->>'type' IN ({_TYPES}) ORDER BY i.number
    """
)
# The results are left in Postgres: they are texts.
_STEPS = text(
    """
    SELECT c.attempt, CAST(called.key AS int) + 1 AS number, called.value->'kind' AS kind,
        called.value->'tool' AS tool, called.value->'server_label' AS server, NULL AS answered
    FROM chunks c, json_array_elements(c.steps) AS step, json_each(step->'end'->'calls') AS called
    WHERE c.response_id = :id
    UNION ALL
    SELECT c.attempt, CAST(step->'result'->>'index' AS int) + 1, step->'result'->'call'->'kind', NULL, NULL, true
    FROM chunks c, json_array_elements(c.steps) AS step WHERE c.response_id = :id AND step->'result' IS NOT NULL
    """
)
_ATTEMPTS = text(
    """
    SELECT attempt, min(first) AS first_event, max(last) AS last_event, count(*) AS flushes,
        CAST(coalesce(sum(octet_length(tokens)), 0) / 4 AS bigint) AS tokens,
        bool_or(length(tokens) > 0 OR steps IS NOT NULL) AS has_progressed,
        CAST(sum(input_tokens) AS bigint) AS input_tokens, CAST(sum(cached_tokens) AS bigint) AS cached_tokens
    FROM chunks WHERE response_id = :id GROUP BY attempt ORDER BY attempt
    """
)


async def find(db: Database, response_id: str) -> KnownResponse | None:
    """The response of whatever project; None: there is none with that id. Raises StoreUnavailable."""
    rows = await db.execute(_KNOWN, {"id": response_id})
    return KnownResponse(**{**rows[0]._mapping, "history": _history(rows[0].history)}) if rows else None


def _history(noted: Any) -> Sequence[HandedOver]:
    return tuple(
        HandedOver(
            each["attempt"],
            each["worker"],
            None if each["from"] is None else datetime.fromisoformat(each["from"]),
            datetime.fromisoformat(each["to"]),
            each["how"],
        )
        for each in noted or ()
    )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a hosted tool, without what it was told and what it answered."""

    number: int
    """Number of its item in the output, from 1 on."""
    type: str
    """Type of its item."""
    tool: str | None
    server: str | None
    status: str


async def read_calls(db: Database, response: KnownResponse) -> Sequence[ToolCall]:
    """The response's calls of hosted tools: from its output, or from its log while it is in progress."""
    if response.finished_at is not None:
        rows = await db.execute(_CALLS_OF_ENDED, {"id": response.id})
        return [
            ToolCall(
                row.number, row.type, row.tool, row.server, row.status or ("failed" if row.has_failed else "completed")
            )
            for row in rows
        ]
    calls: dict[int, ToolCall] = {}
    types = {kind.server_kind: kind.call_type for kind in HOSTED_KINDS}
    answered: set[int] = set()
    for row in await db.execute(_STEPS, {"id": response.id}):
        if row.answered:
            answered.add(row.number)
        else:
            kind = types.get(row.kind, row.kind or "unknown")
            calls[row.number] = ToolCall(row.number, kind, row.tool, row.server, "in_progress")
    return [replace(call, status="completed") if call.number in answered else call for _, call in sorted(calls.items())]


@dataclass(frozen=True, slots=True)
class LoggedAttempt:
    """One attempt's part of the log. Attempt 0 is the API, when it accepted the response."""

    attempt: int
    first_event: int
    last_event: int
    flushes: int
    tokens: int
    """None are left of a log that was merged."""
    has_progressed: bool
    """Whether it has tokens or steps: a death of its worker was no crash then. Unknown of a log that was merged."""
    input_tokens: int
    cached_tokens: int


async def read_attempts(db: Database, response_id: str) -> Sequence[LoggedAttempt]:
    """Each attempt's part of the log; a merged log counts with the last of each page."""
    return [LoggedAttempt(**row._mapping) for row in await db.execute(_ATTEMPTS, {"id": response_id})]
