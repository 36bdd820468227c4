"""Workers that died of late, and suspects: what the rows of responses tell of them.

A worker's row goes with its death. What stays is the history of the responses that it ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from app.store.database import Connection, Database
from app.store.guards import IS_SUSPECT, HandOver
from app.store.queue.fleet import HAS_WRITTEN, follow_indexes
from app.store.tables import IS_SENT

SECONDS = 600.0
"""How far back deaths are looked for."""
MOST_ENDED = 1_000
"""Responses that ended since that are looked at, of those that are stored and of the others: the newest."""
MOST = 20
"""Workers, and suspects."""


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that died while it ran responses."""

    queue: str
    node: str
    at: datetime
    responses: int
    """That it ran; some may be forgotten."""
    waiting: int
    """Those of them that no other worker has yet."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A response that has crashed since it made progress."""

    queue: str
    id: str
    crashes: int


@dataclass(frozen=True, slots=True)
class Casualties:
    deaths: Sequence[Death] = ()
    """The newest first."""
    suspects: Sequence[Suspect] = ()
    """Those with most crashes first."""


_BEGUN = f"""
    (
        SELECT r.* FROM responses r WHERE {IS_SENT.format("r.")} AND r.worker IS NOT NULL
        UNION ALL
        SELECT r.* FROM responses r WHERE r.status = 'in_progress' AND r.worker IS NULL
    )"""


def _ended(kind: str) -> str:
    return f"""
        (SELECT r.queue, r.id, r.history, false AS waits FROM responses r
        WHERE r.finished_at IS NOT NULL AND {kind} AND r.finished_at > now() - make_interval(secs => :seconds)
        ORDER BY r.finished_at DESC LIMIT :most_ended)"""


_DEATHS = text(
    f"""
    SELECT h.queue, h.death->>'worker' AS node, max(CAST(h.death->>'to' AS timestamptz)) AS at,
        count(DISTINCT h.id) AS responses, count(*) FILTER (WHERE h.waits AND h.is_last) AS waiting
    FROM (
        SELECT b.queue, b.id, b.waits, each AS death, each = b.history -> -1 AS is_last
        FROM (
            SELECT r.queue, r.id, r.history, r.worker IS NULL AS waits FROM {_BEGUN} r
            UNION ALL {_ended("r.store")} UNION ALL {_ended("NOT r.store")}
        ) b CROSS JOIN LATERAL jsonb_array_elements(b.history) AS each
        WHERE b.history IS NOT NULL
    ) h
    WHERE h.death->>'how' = '{HandOver.CRASHED.value}'
        AND CAST(h.death->>'to' AS timestamptz) > now() - make_interval(secs => :seconds)
    GROUP BY h.queue, h.death->>'worker' ORDER BY at DESC LIMIT {MOST}
    """
)
_SUSPECTS = text(
    f"""
    SELECT r.queue, r.id, r.crashes FROM {_BEGUN} r
    WHERE {IS_SUSPECT.format("r.")} AND NOT (r.worker IS NOT NULL AND {HAS_WRITTEN})
    ORDER BY r.crashes DESC, r.id LIMIT {MOST}
    """
)


async def read(db: Database) -> Casualties:
    """Raises StoreUnavailable."""
    async with db.begin() as connection:
        await follow_indexes(connection)
        return Casualties(await _deaths(connection), await _suspects(connection))


async def _deaths(connection: Connection) -> Sequence[Death]:
    rows = await connection.execute(_DEATHS, {"seconds": SECONDS, "most_ended": MOST_ENDED})
    return [Death(**row._mapping) for row in rows]


async def _suspects(connection: Connection) -> Sequence[Suspect]:
    return [Suspect(**row._mapping) for row in await connection.execute(_SUSPECTS)]
