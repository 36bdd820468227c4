"""The roles of Postgres, and the rights of each: every table, view and function of the schema is decided here.

`longhaul migrate` grants what this table says to those of the roles that the server has. The table is what the code
does: tests run every kind of process with exactly these rights, and fail for a table that is not decided.

A deleted row takes what hangs on it along as the owner of the tables, and triggers note what happens as the owner
(`SECURITY DEFINER`): neither needs a right. `FOR UPDATE` and its like need UPDATE of some column; where nothing is
changed, it is one whose change does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

API = "longhaul_api"
"""The API, and the commands of operators, which do what its admin API does."""
WORKER = "longhaul_worker"
"""Workers run models, and call tools: theirs are the fewest rights."""
MAINTENANCE = "longhaul_maintenance"
MONITOR = "longhaul_monitor"
"""Metrics and boards: the snapshot of operators, which has no prompt, no output and no key."""
ROLES = (API, WORKER, MAINTENANCE, MONITOR)
PROCESSES = (API, WORKER, MAINTENANCE)

_ALL_READ = dict.fromkeys(ROLES, "SELECT")
_PROCESSES_READ = dict.fromkeys(PROCESSES, "SELECT")

RIGHTS: Mapping[str, Mapping[str, str]] = {
    "responses": {
        API: "SELECT, INSERT, UPDATE, DELETE",
        WORKER: "SELECT, UPDATE",
        MAINTENANCE: "SELECT, INSERT, UPDATE, DELETE",
        MONITOR: "SELECT (id, queue, project, priority, rank, position, status, worker, attempt, yielded, crashes, "
        "inserted_at, sent_at, sent_to, finished_at, log, log_bytes, batch_id, batch_line, key_id, started_at, store, "
        "usage, history, queue_deadline, run_deadline, due_at, foreground_place)",
    },
    "chunks": {
        API: "SELECT, INSERT",
        WORKER: "SELECT, INSERT",
        MAINTENANCE: "SELECT, INSERT, DELETE",
        MONITOR: "SELECT (response_id, first, attempt)",
    },
    "conversations": {
        API: "SELECT, INSERT, UPDATE, DELETE",
        WORKER: "SELECT, UPDATE (changed_at)",
        MAINTENANCE: "SELECT, UPDATE (changed_at), DELETE",
    },
    "conversation_items": {
        API: "SELECT, INSERT, DELETE",
        WORKER: "SELECT, INSERT",
        MAINTENANCE: "SELECT",  # it accepts the lines of batches, which refer to items as requests do
    },
    # -- the queue
    "workers": {
        API: "SELECT",
        WORKER: "SELECT, INSERT, UPDATE, DELETE",
        MAINTENANCE: "SELECT, UPDATE, DELETE",
        MONITOR: "SELECT",
    },
    "drains": {
        API: "SELECT, INSERT, DELETE",
        WORKER: "SELECT (node)",
        MAINTENANCE: "SELECT (node, absent_since), UPDATE (absent_since), DELETE",
        MONITOR: "SELECT",
    },
    "pauses": {
        API: "SELECT, INSERT, DELETE",
        **dict.fromkeys((WORKER, MAINTENANCE), "SELECT (queue, project)"),
        MONITOR: "SELECT",
    },
    "queues": dict.fromkeys(PROCESSES, "SELECT, INSERT, UPDATE"),
    "flows": {**dict.fromkeys(PROCESSES, "SELECT, INSERT, UPDATE"), MAINTENANCE: "SELECT, INSERT, UPDATE, DELETE"},
    "open_workers": _PROCESSES_READ,
    "worker_loads": _ALL_READ,
    "present_workers": {MAINTENANCE: "SELECT"},
    "queue_slots": {MAINTENANCE: "SELECT"},
    "waiting_responses": {
        **_PROCESSES_READ,
        MONITOR: "SELECT (queue, project, priority, rank, position, key_id, status, inserted_at)",
    },
    "progress": dict.fromkeys((WORKER, MAINTENANCE), "SELECT"),
    # -- tenants
    "projects": {
        API: "SELECT, INSERT, UPDATE",
        WORKER: "SELECT (id, weight)",
        MAINTENANCE: "SELECT, UPDATE (stored_bytes, erase_at, erased_at)",
        MONITOR: "SELECT (id, stored_bytes)",
    },
    "api_keys": {
        API: "SELECT, INSERT, UPDATE",
        MAINTENANCE: "SELECT (id, project, expires_at, revoked_at), UPDATE (last_used_at), DELETE",
    },
    # Nobody may change an entry; `delete_audit_entries` deletes old ones.
    "audit_logs": {API: "SELECT, INSERT", MAINTENANCE: "INSERT"},
    "limits": {API: "SELECT, INSERT, UPDATE, DELETE", MAINTENANCE: "SELECT, UPDATE, DELETE", MONITOR: "SELECT"},
    "settlements": dict.fromkeys((API, MAINTENANCE), "SELECT, DELETE"),
    "stored_changes": dict.fromkeys((API, MAINTENANCE), "SELECT, DELETE"),
    "usage_entries": {API: "SELECT", MAINTENANCE: "SELECT, UPDATE (id), DELETE", MONITOR: "SELECT (id, at)"},
    "usage": {API: "SELECT", MAINTENANCE: "SELECT, INSERT, UPDATE, DELETE"},
    "bulk_actions": {API: "SELECT, INSERT, UPDATE", MAINTENANCE: "SELECT, UPDATE, DELETE"},
    # -- files and batches
    "files": {API: "SELECT, INSERT, UPDATE, DELETE", MAINTENANCE: "SELECT, INSERT, UPDATE, DELETE"},
    "batches": {
        API: "SELECT, INSERT, UPDATE",
        MAINTENANCE: "SELECT, UPDATE, DELETE",
        MONITOR: "SELECT (id, project, key_id, status, queue, total, expanded)",
    },
    "batch_results": {API: "SELECT", MAINTENANCE: "SELECT, INSERT, UPDATE, DELETE"},
    "file_parts": {API: "SELECT, INSERT, UPDATE, DELETE", MAINTENANCE: "SELECT, INSERT, UPDATE, DELETE"},
    "file_blocks": {API: "SELECT, INSERT, UPDATE, DELETE", MAINTENANCE: "SELECT, INSERT, UPDATE, DELETE"},
    # -- webhooks; triggers write deliveries
    "webhook_endpoints": {
        API: "SELECT, INSERT, UPDATE, DELETE",
        MAINTENANCE: "SELECT, UPDATE, DELETE",
        MONITOR: "SELECT (id, project, failing_since, disabled_at, disabled_reason)",
    },
    "webhook_deliveries": {
        API: "SELECT, UPDATE, DELETE",
        MAINTENANCE: "SELECT, UPDATE, DELETE",
        MONITOR: "SELECT (endpoint, due_at)",
    },
    # -- what all share
    "keys": {API: "SELECT, INSERT, UPDATE", WORKER: "SELECT", MAINTENANCE: "SELECT"},
    "alembic_version": _ALL_READ,
    "oldest_revision": _ALL_READ,
}
"""By table or view, then by role, as GRANT has it. A role that is not named has no right there."""

ROWS: Mapping[str, Mapping[str, str]] = {
    "keys": {
        API: "true",
        WORKER: "name = 'pubsub' OR name ~ '^seal'",
        MAINTENANCE: "name ~ '^(pubsub|cache_salt|seal)'",
    },
}
"""Table with row level security -> role -> the rows that exist for it."""

FUNCTIONS: Mapping[str, tuple[str, ...]] = {"delete_audit_entries(timestamptz, integer)": (MAINTENANCE,)}
"""Who may call a function of the schema that runs as the owner. Those of triggers are called by nobody."""

_RIGHT = re.compile(r"([A-Z]+)(?: \(([a-z_, ]+)\))?")


def parsed(rights: str) -> Iterator[tuple[str, str | None]]:
    """Each right of an entry of RIGHTS: `SELECT`, and the column that it is limited to, or None."""
    for right, columns in _RIGHT.findall(rights):
        for column in columns.split(", ") if columns else (None,):
            yield right, column


def wanted(*roles: str) -> set[tuple[str, str, str | None]]:
    """What these roles may do together: table, right, and column or None. A table's right includes its columns'."""
    found = {
        (table, *right)
        for table, of_role in RIGHTS.items()
        for role in roles
        for right in parsed(of_role.get(role, ""))
    }
    return {each for each in found if each[2] is None or (*each[:2], None) not in found}
