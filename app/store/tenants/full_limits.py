"""The limits that refuse requests now, of all projects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text

from app.protocol.limits import CHARGED, PER_MINUTE, LimitKind, LimitState, decayed
from app.store.database import Connection

MOST = 100
"""Limits that are read, those with the most taken first."""
FULL_PART = 0.99
"""From so much of it on a limit counts as full: hardly a request fits."""


@dataclass(frozen=True, slots=True)
class FullLimit:
    """A limit of which hardly anything is left; one of requests a minute was used up within the last minute.

    The bucket gets room for one request every few seconds: between two of them it refuses all others.
    """

    project: str
    project_name: str
    state: LimitState


_CHARGED = ", ".join(sorted(f"'{kind.value}'" for kind in CHARGED))
# What has ended since is given back within seconds, when maintenance adds it up; nothing is written here.
_NEARLY_FULL = text(
    f"""
    SELECT l.project, p.name, l.model, l.kind, l.value,
        CASE WHEN l.kind = 'stored_bytes' THEN l.used + p.stored_bytes ELSE l.used END AS used,
        greatest(0, extract(epoch FROM now() - l.as_of))::float8 AS idle_seconds,
        extract(epoch FROM date_trunc('day', now(), 'UTC') + interval '1 day' - now())::float8 AS day_seconds
    FROM limits l JOIN projects p ON p.id = l.project
    WHERE CASE l.kind
        WHEN 'stored_bytes' THEN l.used + p.stored_bytes
        WHEN 'tokens_per_day' THEN CASE WHEN l.as_of < date_trunc('day', now(), 'UTC') THEN 0 ELSE l.used END
        ELSE CASE WHEN l.kind LIKE '%\\_per\\_minute' AND l.as_of < now() - interval '1 minute' THEN 0 ELSE l.used END
    END >= CASE WHEN l.kind IN ({_CHARGED}) THEN l.value - 0.999 ELSE {FULL_PART} * l.value END
    ORDER BY l.used / l.value DESC, l.project, l.model, l.kind LIMIT {MOST}
    """
)


async def read(connection: Connection) -> Sequence[FullLimit]:
    found = []
    for row in await connection.execute(_NEARLY_FULL):
        kind = LimitKind(row.kind)
        used = decayed(row.used, row.value, row.idle_seconds) if kind in PER_MINUTE else row.used
        state = LimitState(row.project, row.model, kind, row.value, used, day_seconds=row.day_seconds)
        if kind in CHARGED or used >= FULL_PART * row.value or state.remaining < 1:
            found.append(FullLimit(row.project, row.name, state))
    return found
