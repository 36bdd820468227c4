"""Names that statements share. The schema is the migrations' SQL (migrations/versions).

The tables below are for statements that are still written as expressions.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON

from app.protocol.status import BatchStatus

DEFAULT_PROJECT = "default"
"""The project of callers without a key. The first migration makes it."""

UNFINISHED_BATCHES = ", ".join(f"'{each.value}'" for each in BatchStatus if not each.final)

IS_WAITING = (
    "({0}status = 'queued' OR {0}status = 'in_progress' AND {0}yielded AND {0}worker IS NULL) AND {0}sent_at IS NULL"
)
"""The condition of a response that waits for its turn, as the view `waiting_responses` has it (queue/facts.py)."""
IS_SENT = "{0}sent_at IS NOT NULL AND {0}finished_at IS NULL"
"""The condition of a response that a worker has, or is to have, as `responses_sent_idx` has it."""

LINES_QUEUE = "(SELECT r.queue FROM responses r WHERE r.batch_id = b.id ORDER BY r.batch_line DESC LIMIT 1)"
"""The queue of the batch `b`: of its last line that is a response. NULL: none is."""

LIVING_SLOTS = "(SELECT sum(w.slots) FROM workers w WHERE w.queue = {} AND w.lease_until > now())"
"""The slots of a queue's living workers; NULL: it has none."""

_metadata = MetaData()
_TIME = DateTime(timezone=True)


def _columns(type_: Any, names: str) -> list[Column[Any]]:
    return [Column(name, type_) for name in names.split()]


bulk_actions = Table(
    "bulk_actions",
    _metadata,
    *_columns(Text, "id kind reason actor state"),
    *_columns(JSON, "filter refused"),
    *_columns(_TIME, "created_at finished_at cursor_at"),
    *_columns(BigInteger, "matched done cursor_position passed_by"),
    *_columns(Integer, "batches"),
)

batches = Table(
    "batches",
    _metadata,
    *_columns(Text, "id project key_id endpoint input_file completion_window status retry_of"),
    *_columns(Text, "idempotency_key model queue output_file error_file"),
    *_columns(JSON(none_as_null=True), "metadata errors"),
    *_columns(Integer, "output_seconds total expanded numbered completed failed written"),
    *_columns(ARRAY(Integer), "lines"),
    *_columns(_TIME, "validating_until lines_cancelled_at created_at due_at in_progress_at finalizing_at"),
    *_columns(_TIME, "completed_at failed_at expired_at cancelling_at cancelled_at"),
    *_columns(BigInteger, "expanded_bytes input_tokens cached_tokens output_tokens reasoning_tokens"),
    *_columns(ARRAY(Text), "output_parts error_parts"),
)
