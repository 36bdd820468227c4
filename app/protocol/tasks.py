"""The tasks of stored requests other than an answer. Workers import this module without the models of requests."""

from __future__ import annotations

COUNT = "count"
"""The `task` of a stored request that only prepares a prompt (`generate: false` on a WebSocket): it is counted."""

COMPACT = "compact"
"""The `task` of a stored request whose answer is a compaction of its context."""
