"""Names that statements share. The schema is the migrations' SQL (migrations/versions)."""

from __future__ import annotations

from app.protocol.status import BatchStatus

DEFAULT_PROJECT = "default"
"""The project of callers without a key. The first migration makes it."""

UNFINISHED_BATCHES = ", ".join(f"'{each.value}'" for each in BatchStatus if not each.final)
