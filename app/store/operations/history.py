"""What the rows know of one response besides its texts: for its history (app/operations/history.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import text

from app.protocol.hosted_kinds import HOSTED_KINDS
from app.protocol.status import Status
from app.store.database import Database

MCP_LIST = "mcp_list_tools"
_TYPES = ", ".join(f"'{name}'" for name in (MCP_LIST, *(kind.call_type for kind in HOSTED_KINDS)))

_FACTS = text(
    """
    SELECT status, request_id, traceparent, inserted_at, sent_at, sent_to, sends, claimed_at, finished_at, attempt,
        worker IS NOT NULL AS is_owned, history, error->>'code' AS error_code, error->>'message' AS error_message,
        incomplete_details->>'reason' AS incomplete_reason
    FROM responses WHERE id = :id
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


@dataclass(frozen=True, slots=True)
class HandedOver:
    """An attempt that handed the response over."""

    attempt: int
    worker: str
    began_at: datetime | None
    ended_at: datetime
    how: str
    """A HandOver, or what a newer version calls one."""

    @classmethod
    def from_json(cls, noted: Mapping[str, Any]) -> HandedOver:
        began = noted["from"]
        return cls(
            noted["attempt"],
            noted["worker"],
            None if began is None else datetime.fromisoformat(began),
            datetime.fromisoformat(noted["to"]),
            noted["how"],
        )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a hosted tool, without what it was told and what it answered."""

    number: int
    """Of its item in the output, from 1 on."""
    type: str
    """Of its item."""
    tool: str | None
    server: str | None
    status: str


@dataclass(frozen=True, slots=True)
class ResponseFacts:
    """One response, without its texts."""

    status: Status
    request_id: str | None
    traceparent: str | None
    inserted_at: datetime
    sent_at: datetime | None
    sent_to: str | None
    sends: int
    claimed_at: datetime | None
    finished_at: datetime | None
    attempt: int
    is_owned: bool
    """Whether a worker has it."""
    error_code: str | None
    error_message: str | None
    incomplete_reason: str | None
    history: Sequence[HandedOver] = ()
    calls: Sequence[ToolCall] = ()


async def read(db: Database, response_id: str) -> ResponseFacts | None:
    """The facts of a response, of whatever project; None: there is none with that id. Raises StoreUnavailable."""
    if not (rows := await db.execute(_FACTS, {"id": response_id})):
        return None
    found = rows[0]._asdict()
    status = Status(found.pop("status"))
    history = tuple(map(HandedOver.from_json, found.pop("history") or ()))
    calls = await _calls_of_ended(db, response_id) if status.final else await _calls_so_far(db, response_id)
    return ResponseFacts(**found, status=status, history=history, calls=calls)


async def _calls_of_ended(db: Database, response_id: str) -> Sequence[ToolCall]:
    rows = await db.execute(_CALLS_OF_ENDED, {"id": response_id})
    return tuple(
        ToolCall(
            row.number, row.type, row.tool, row.server, row.status or ("failed" if row.has_failed else "completed")
        )
        for row in rows
    )


async def _calls_so_far(db: Database, response_id: str) -> Sequence[ToolCall]:
    """Of a response in progress, whose output is in its log."""
    calls: dict[int, ToolCall] = {}
    types = {kind.server_kind: kind.call_type for kind in HOSTED_KINDS}
    answered: set[int] = set()
    for row in await db.execute(_STEPS, {"id": response_id}):
        if row.answered:
            answered.add(row.number)
        else:
            calls[row.number] = ToolCall(
                row.number, types.get(row.kind, row.kind or "unknown"), row.tool, row.server, "in_progress"
            )
    return tuple(
        replace(call, status="completed") if call.number in answered else call for _, call in sorted(calls.items())
    )
