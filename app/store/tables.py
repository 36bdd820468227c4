"""Names that statements share. The schema is the migrations' SQL (migrations/versions)."""

from __future__ import annotations

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
