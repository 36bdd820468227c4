"""Signs that maintenance does its work: how late it is with what it does every few seconds."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Signs:
    """Each is 0 if nothing is late."""

    usage_late_seconds: float = 0.0
    """Since the oldest note of usage that is not in the ledger yet."""
    deadline_late_seconds: float = 0.0
    """Since the oldest deadline that has passed."""
    log_late_seconds: float = 0.0
    """Since the end of the retention of the oldest log that is not deleted."""


_LATE = "coalesce(greatest(extract(epoch FROM now() - {})::float8, 0), 0)"
_SIGNS = text(
    f"""
    SELECT
        {_LATE.format("(SELECT e.at FROM usage_entries e ORDER BY e.id LIMIT 1)")} AS usage,
        {
        _LATE.format('''(SELECT r.queue_deadline FROM responses r WHERE r.status = 'queued'
            AND r.queue_deadline IS NOT NULL ORDER BY r.queue_deadline LIMIT 1)''')
    } AS queue,
        {
        _LATE.format('''(SELECT r.run_deadline FROM responses r WHERE r.status = 'in_progress'
            AND r.run_deadline IS NOT NULL ORDER BY r.run_deadline LIMIT 1)''')
    } AS run
    """
)


async def read(connection: Connection, log_late_seconds: float) -> Signs:
    """In a transaction that follows indexes."""
    row = (await connection.execute(_SIGNS)).one()
    return Signs(row.usage, max(row.queue, row.run), log_late_seconds)
