"""Names that statements share. The schema is the migrations' SQL (migrations/versions).

The tables below are for statements that are still written as expressions.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB

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

TAKES = "{0}slots > 0 AND NOT EXISTS (SELECT FROM drains d WHERE d.node = {0}node)"
"""The condition of a worker that may be sent responses, as the view `worker_loads` has it."""

LIVING_SLOTS = "(SELECT sum(w.slots) FROM workers w WHERE w.queue = {} AND w.lease_until > now())"
"""The slots of a queue's living workers; NULL: it has none."""

CHUNK_BYTES = "octet_length({0}frames) + octet_length({0}tokens) + coalesce(octet_length(CAST({0}steps AS text)), 0)"
"""What a chunk counts with in the bytes that its project stores."""
LOG_BYTES = f"(SELECT coalesce(sum({CHUNK_BYTES.format('')}), 0) FROM chunks WHERE response_id = responses.id)"
"""What ends a response, or merges its log, sets `log_bytes` to this."""
LOG_STATE = "CASE WHEN {} >= 8192 THEN 'live' ELSE 'merged' END"
"""And `log` to this: to merge fewer bytes costs more than their few rows."""

_metadata = MetaData()
_TIME = DateTime(timezone=True)


def _columns(type_: Any, names: str) -> list[Column[Any]]:
    return [Column(name, type_) for name in names.split()]


responses = Table(
    "responses",
    _metadata,
    *_columns(Text, "id project model queue status previous_response_id conversation_id worker error_code"),
    *_columns(Text, "sent_to heads idempotency_key log key_id retry_of batch_id custom_id request_id"),
    *_columns(Text, "traceparent tracestate"),
    *_columns(SmallInteger, "priority yields layout"),
    *_columns(Boolean, "background stream store foreground_place yielded"),
    *_columns(ARRAY(Text), "include call_ids approvals input_ids"),
    *_columns(Integer, "chain_length request_bytes input_bytes output_bytes messages_bytes attempt crashes"),
    *_columns(Integer, "sends cost charged batch_line"),
    *_columns(BigInteger, "context_bytes log_bytes position affinity rank reserved_input reserved_output"),
    *_columns(BigInteger, "reserved_bytes"),
    *_columns(JSON, "request"),
    *_columns(JSON(none_as_null=True), "metadata output tool_results messages usage error incomplete_details"),
    *_columns(_TIME, "created_at inserted_at started_at claimed_at finished_at sent_at queue_deadline"),
    *_columns(_TIME, "run_deadline due_at reserved_at"),
    *_columns(Double, "run_seconds"),
    *_columns(LargeBinary, "fingerprint"),
    *_columns(JSONB(none_as_null=True), "history"),
)

chunks = Table(
    "chunks",
    _metadata,
    *_columns(Text, "response_id"),
    *_columns(Integer, "first last attempt size input_tokens cached_tokens"),
    *_columns(Boolean, "final"),
    *_columns(LargeBinary, "tokens frames"),
    *_columns(JSON(none_as_null=True), "steps"),
)

conversations = Table(
    "conversations",
    _metadata,
    *_columns(Text, "id project"),
    *_columns(JSON, "metadata"),
    *_columns(_TIME, "created_at inserted_at changed_at"),
)

conversation_items = Table(
    "conversation_items",
    _metadata,
    *_columns(Text, "conversation_id project id call_id approval"),
    *_columns(BigInteger, "position"),
    *_columns(JSON, "item"),
    *_columns(JSON(none_as_null=True), "tool_results"),
    *_columns(Integer, "bytes"),
    *_columns(_TIME, "added_at"),
)

files = Table(
    "files",
    _metadata,
    *_columns(Text, "id project filename purpose"),
    *_columns(BigInteger, "bytes"),
    *_columns(_TIME, "created_at expires_at"),
)

workers = Table(
    "workers",
    _metadata,
    *_columns(Text, "id model queue node host format tool_parser reasoning_parser unit devices device"),
    *_columns(Text, "version"),
    *_columns(Integer, "pid context_length slots away foreground_away"),
    *_columns(_TIME, "started_at lease_until absent_since"),
    *_columns(SmallInteger, "layout"),
    *_columns(JSON, "default_sampling refusals"),
    *_columns(JSON(none_as_null=True), "efforts"),
)

drains = Table(
    "drains",
    _metadata,
    *_columns(Text, "node reason actor"),
    *_columns(_TIME, "since absent_since"),
)

pauses = Table(
    "pauses",
    _metadata,
    *_columns(Text, "queue project model reason actor"),
    *_columns(_TIME, "since"),
)

keys = Table(
    "keys",
    _metadata,
    *_columns(Text, "name"),
    *_columns(LargeBinary, "value"),
)

projects = Table(
    "projects",
    _metadata,
    *_columns(Text, "id name top_tier"),
    *_columns(ARRAY(Text), "models tool_servers"),
    *_columns(_TIME, "created_at archived_at erase_at erased_at"),
    *_columns(Double, "weight"),
    *_columns(BigInteger, "stored_bytes"),
    *_columns(Integer, "conversation_days"),
)

api_keys = Table(
    "api_keys",
    _metadata,
    *_columns(Text, "id project service_account name shown"),
    *_columns(LargeBinary, "hash"),
    *_columns(ARRAY(Text), "scopes"),
    *_columns(_TIME, "created_at expires_at last_used_at revoked_at"),
    *_columns(Double, "lifetime_seconds"),
)

audit_logs = Table(
    "audit_logs",
    _metadata,
    *_columns(Text, "id type actor project resource address request_id"),
    *_columns(_TIME, "effective_at"),
    *_columns(JSON, "details"),
)

bulk_actions = Table(
    "bulk_actions",
    _metadata,
    *_columns(Text, "id kind reason actor state"),
    *_columns(JSON, "filter refused"),
    *_columns(_TIME, "created_at finished_at cursor_at"),
    *_columns(BigInteger, "matched done cursor_position passed_by"),
    *_columns(Integer, "batches"),
)

limits = Table(
    "limits",
    _metadata,
    *_columns(Text, "project model kind"),
    *_columns(BigInteger, "value"),
    *_columns(_TIME, "since as_of"),
    *_columns(Double, "used drained_per_second"),
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

batch_results = Table(
    "batch_results",
    _metadata,
    *_columns(Text, "batch_id custom_id status response_id"),
    *_columns(Integer, "line number"),
    *_columns(JSON(none_as_null=True), "error"),
    *_columns(BigInteger, "input_tokens cached_tokens output_tokens reasoning_tokens"),
)
