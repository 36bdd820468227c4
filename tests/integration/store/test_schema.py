"""The schema refuses rows that must not be, and knows the values that the code has."""

from __future__ import annotations

import re

import pytest
from sqlalchemy.exc import IntegrityError

from app.access.caller import Scope
from app.protocol.limits import SERVICE_TIERS, LimitKind
from app.protocol.status import FINAL, BatchStatus, Status
from app.queue.message import FOREGROUND, Priority
from app.store.database import Database
from tests.integration.store.common import scalar, sql
from tests.support.rows import queued

RESPONSE = "UPDATE responses SET {} WHERE id = :id"
KEY = """
    INSERT INTO api_keys (id, project, name, hash, shown, scopes, created_at)
    VALUES (:id, 'default', 'a', sha256('a'), 'a', {}, now())
"""
LIMIT = "INSERT INTO limits (project, model, kind, value, since, as_of) VALUES ('default', :id, {}, now(), now())"
WORKER = """
    INSERT INTO workers
        (id, node, model, queue, host, pid, started_at, lease_until, layout, context_length, slots, format)
    VALUES (:id, 'n', 'm', 'q', 'h', 1, now(), now(), 1, {})
"""


CONVERSATION = "INSERT INTO conversations (id, project, metadata, created_at) VALUES (:id, 'nobody', '{}', now())"
AUDITED = """
    INSERT INTO audit_logs (id, project, effective_at, type, resource, details)
    VALUES (:id, 'nobody', now(), 't', 'r', '{}')
"""
LAST = """
    INSERT INTO chunks (response_id, first, last, attempt, final, tokens, frames, size)
    SELECT :id, n, n, 1, true, '', '', 0 FROM generate_series(98, 99) n
"""
FORBIDDEN = [
    ("responses_reserved_all_or_none", RESPONSE.format("reserved_at = now()")),
    ("responses_reserved_all_or_none", RESPONSE.format("reserved_input = 1, reserved_output = 1")),
    ("responses_priority_known", RESPONSE.format("priority = 4")),
    ("responses_place_in_chain", RESPONSE.format("chain_length = 0")),
    ("responses_cost_not_negative", RESPONSE.format("cost = -1")),
    ("responses_", RESPONSE.format("status = 'cancelled'")),  # a final row without its time
    ("responses_", RESPONSE.format("finished_at = now()")),  # a time without a final row
    ("responses_", "UPDATE responses SET error = '{}' WHERE id = :id"),  # an error without a failure
    ("responses_", RESPONSE.format("worker = 'w'")),  # an owner while queued
    ("responses_", RESPONSE.format("status = 'paused'")),
    ("responses_", RESPONSE.format("status = 'in_progress', started_at = now()")),  # without an attempt
    ("api_keys_scopes_known", KEY.format("'{everything}'")),
    ("api_keys_scopes_known", KEY.format("'{}'")),
    ("limits_kind_known", LIMIT.format("'tokens_per_year', 1")),
    ("limits_value_in_bounds", LIMIT.format("'tokens_per_day', 0")),
    ("limits_value_in_bounds", LIMIT.format("'tokens_per_day', 9007199254740991")),
    ("workers_engine_has_room", WORKER.format("4096, -1, 'chat'")),
    ("workers_engine_has_room", WORKER.format("0, 1, 'chat'")),
    ("workers_format_known", WORKER.format("4096, 1, 'auto'")),
    ("conversations_project_fkey", CONVERSATION),
    ("audit_logs_project_fkey", AUDITED),
    ("chunks_final_idx", LAST),
]


async def test_postgres_refuses_what_must_not_be(db: Database) -> None:
    response_id = await queued(db)
    for constraint, statement in FORBIDDEN:
        with pytest.raises(IntegrityError, match=constraint):
            await sql(db, statement, id=response_id)
            pytest.fail(f"Postgres takes {statement}")


FINAL_STATUSES = [each.value for each in FINAL]
KNOWN = {
    "responses_status_known": [each.value for each in Status],
    "responses_finished_when_final": FINAL_STATUSES,
    "responses_output_when_final": FINAL_STATUSES,
    "responses_priority_known": [each.value for each in Priority],
    "batches_status_known": [each.value for each in BatchStatus],
    "limits_kind_known": [each.value for each in LimitKind],
    "projects_top_tier_known": SERVICE_TIERS,
    "api_keys_scopes_known": [each.value for each in Scope],
}


async def test_postgres_knows_the_values_that_the_code_has_and_no_others(db: Database) -> None:
    for constraint, values in KNOWN.items():
        definition = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = :name"
        (listed,) = re.findall(r"ARRAY\[([^\]]*)\]", await scalar(db, definition, name=constraint))
        assert {re.sub(r"::\w+|'", "", each) for each in listed.split(", ")} == set(map(str, values)), constraint


async def test_its_conditions_know_the_classes_of_the_code(db: Database) -> None:
    foreground = sorted(int(each) for each in FOREGROUND)
    index = await scalar(db, "SELECT pg_get_indexdef('responses_foreground_waiting_idx'::regclass)")
    loads = await scalar(db, "SELECT pg_get_viewdef('worker_loads'::regclass)")
    assert str(foreground) in index and str(foreground) in loads
    due = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'responses_due_in_window'"
    assert f"(priority = {Priority.WINDOW:d})" in await scalar(db, due)
