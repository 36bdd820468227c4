"""How fast the deployment works of late: what its last responses took, by worker and by queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import text

from app.store.database import Connection

SECONDS = 300.0
"""How far back it looks."""
MOST = 1_000
"""Responses that are counted, of those that are stored and of the others: if more have ended, less far back."""
MOST_READ = 10 * MOST
"""Of each kind, with those that ended without a worker: a bulk cancel ends a hundred thousand of them at once."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What ended of one worker of a queue within `seconds`."""

    queue: str
    node: str
    ended: int
    output_tokens: float
    """Of these responses, as far as they ran within that time."""
    seconds: float
    """Since the first of these responses began, and SECONDS at most."""


# Output tokens are taken for evenly spread over the run of their response. Counts have priority 0.
_LATEST = """
    SELECT {} FROM responses
    WHERE finished_at IS NOT NULL AND {} AND finished_at > now() - make_interval(secs => :seconds)
    ORDER BY finished_at DESC
"""
_ENDED = """
    SELECT queue, sent_to, started_at, finished_at, coalesce(CAST(usage->>'output_tokens' AS float8), 0) AS tokens
    FROM ({} LIMIT :most_read) latest
    WHERE started_at IS NOT NULL AND sent_to IS NOT NULL AND priority > 0
    LIMIT :most
"""
_SINCE = """
    (SELECT CASE WHEN count(*) >= :most THEN min(finished_at) ELSE ({} OFFSET :most_read LIMIT 1) END FROM {})
"""


def _ended(kind: str) -> str:
    return _ENDED.format(_LATEST.format("*", kind))


def _since(kind: str, ended: str) -> str:
    return _SINCE.format(_LATEST.format("finished_at", kind), ended)


_PACE = text(
    f"""
    WITH stored AS MATERIALIZED ({_ended("store")}), unstored AS MATERIALIZED ({_ended("NOT store")}),
    since AS (
        SELECT greatest(now() - make_interval(secs => :seconds),
            {_since("store", "stored")}, {_since("NOT store", "unstored")}) AS at
    )
    SELECT e.queue, e.sent_to, count(*) AS ended,
        extract(epoch FROM now() - greatest(max(s.at), min(e.started_at)))::float8 AS seconds,
        sum(e.tokens * least(1, extract(epoch FROM e.finished_at - greatest(e.started_at, s.at))
            / greatest(extract(epoch FROM e.finished_at - e.started_at), 0.001)))::float8 AS tokens
    FROM since s CROSS JOIN (SELECT * FROM stored UNION ALL SELECT * FROM unstored) e
    WHERE e.finished_at > s.at
    GROUP BY e.queue, e.sent_to
    """
)


async def read(connection: Connection) -> Sequence[Pace]:
    """In a transaction that follows indexes (`fleet.follow_indexes`)."""
    rows = await connection.execute(_PACE, {"seconds": SECONDS, "most": MOST, "most_read": MOST_READ})
    return [Pace(row.queue, row.sent_to, row.ended, row.tokens, row.seconds) for row in rows]


def tokens_per_second(paces: Iterable[Pace]) -> Mapping[str, float]:
    """By the worker's node."""
    return {each.node: each.output_tokens / max(each.seconds, 1.0) for each in paces}


@dataclass(frozen=True, slots=True)
class QueuePace:
    """What all workers of a queue do, over the longest time of one of them."""

    ended_per_second: float
    tokens_per_second: float
    seconds: float


def of_queues(paces: Iterable[Pace]) -> Mapping[str, QueuePace]:
    """By queue; one of which nothing has ended of late is missing."""
    found: dict[str, list[Pace]] = {}
    for each in paces:
        found.setdefault(each.queue, []).append(each)
    return {queue: _together(each) for queue, each in found.items()}


def _together(paces: Sequence[Pace]) -> QueuePace:
    seconds = max(1.0, *(each.seconds for each in paces))
    ended, tokens = sum(each.ended for each in paces), sum(each.output_tokens for each in paces)
    return QueuePace(ended / seconds, tokens / seconds, seconds)
