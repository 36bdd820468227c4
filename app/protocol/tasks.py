"""What a stored request asks for other than an answer. Workers import this module without the models of requests."""

from __future__ import annotations

COUNT = "count"
"""The `task` of a stored request whose prompt is counted, and for which nothing is generated."""

COMPACT = "compact"
"""The `task` of a stored request whose answer is a compaction of its context."""
