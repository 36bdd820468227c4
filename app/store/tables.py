"""Names that statements share. The schema is the migrations' SQL (migrations/versions)."""

from __future__ import annotations

from app.protocol.status import BatchStatus

DEFAULT_PROJECT = "default"
"""The project of callers without a key. The first migration makes it."""

UNFINISHED_BATCHES = ", ".join(f"'{each.value}'" for each in BatchStatus if not each.final)

EVENT_PLACE = "'evt_' || lpad(to_hex(CAST(CAST({} AS text) AS bigint)), 12, '0')"
"""How an event's id begins: with its transaction, so that ids sort in an order in which nothing comes late
(webhooks/events.py)."""
EVENT_ID = f"{EVENT_PLACE.format('pg_current_xact_id()')} || right({{0}}id, 28)"
"""What ends a batch, or a background response that is no line of one, sets `event_id` to this."""
RESPONSE_EVENT = f"CASE WHEN r.background AND r.batch_id IS NULL THEN {EVENT_ID.format('r.')} END"
