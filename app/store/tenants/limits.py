"""Limits of projects: reserved with the insert, settled by the end.

A reservation locks the project's row, reads its limits, and adds what the trigger `responses_settle` has noted since
(`settlements`). Whoever ends a response or claims it only adds such a note: nobody waits for a reservation but other
reservations of the same project. Projects are locked in the order of their ids.

What a project stores is counted in the same way: triggers note each change (`stored_changes`), and whoever holds the
project's lock adds the notes to `projects.stored_bytes`. Of unfinished responses only the request is reserved.

Time never gives room twice: unused tokens of a minute are given back less what has been refilled since they were
reserved, because the refill counted them already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.errors import LimitReached
from app.protocol.limits import (
    ALL_MODELS,
    DRAIN_SECONDS,
    PER_MINUTE,
    LimitKind,
    LimitState,
    admit_stored,
    decayed,
    drain_after,
    unbiased_drain,
)
from app.store.columns import Column, Columns, named_arrays
from app.store.database import Database

SETTLED_TOGETHER = 100
"""Projects whose notes maintenance adds up in one transaction."""

_LOCK = text("SELECT id FROM projects WHERE id = ANY(:projects) ORDER BY id FOR NO KEY UPDATE")
_LOCK_IF_FREE = text(f"{_LOCK.text} SKIP LOCKED")

# `given`: what each settlement gives back, by the kind of limit. A negative age would give more than was taken, and
# exp() of less than about -700 is an error.
_READ = text(
    f"""
    WITH moment AS MATERIALIZED (
        SELECT clock_timestamp() AS now
    ), clock AS MATERIALIZED (
        SELECT now, date_trunc('day', now, 'UTC') AS today FROM moment
    ), taken AS (
        DELETE FROM settlements WHERE project = ANY(:projects)
        RETURNING project, model, reserved_at, at, left_queue, ended, bytes, unused_tokens
    ), changed AS (
        DELETE FROM stored_changes WHERE project = ANY(:projects) RETURNING project, bytes
    ), counted AS (
        UPDATE projects p SET stored_bytes = p.stored_bytes + s.bytes
        FROM (SELECT project, CAST(sum(bytes) AS bigint) AS bytes FROM changed GROUP BY project) s
        WHERE p.id = s.project RETURNING p.id, p.stored_bytes
    ), settled AS (
        SELECT l.project, l.model, l.kind, greatest(0, CAST(extract(epoch FROM c.now - t.at) AS float8)) AS age,
            CASE l.kind
                WHEN 'tokens_per_minute' THEN CASE WHEN t.unused_tokens > 0 THEN greatest(0, t.unused_tokens
                    - l.value * greatest(0, CAST(extract(epoch FROM c.now - t.reserved_at) AS float8)) / 60)
                    ELSE t.unused_tokens END
                WHEN 'tokens_per_day' THEN CASE WHEN t.reserved_at >= c.today THEN t.unused_tokens ELSE 0 END
                WHEN 'queued_responses' THEN CAST(t.left_queue AS int)
                WHEN 'queued_bytes' THEN CAST(t.left_queue AS int) * t.bytes
                WHEN 'unfinished_responses' THEN CAST(t.ended AS int)
                WHEN 'stored_bytes' THEN CAST(t.ended AS int) * t.bytes
                ELSE 0
            END AS given
        FROM taken t CROSS JOIN clock c
        JOIN limits l ON l.project = t.project AND l.model IN ('{ALL_MODELS}', t.model) AND t.reserved_at >= l.since
    ), gained AS (
        SELECT project, model, kind, sum(given) AS given,
            sum(given * exp(-least(50, age / {DRAIN_SECONDS}))) AS recent
        FROM settled GROUP BY project, model, kind
    )
    SELECT l.project, l.model, l.kind, l.value, l.drained_per_second, c.now,
        CASE WHEN l.kind = 'tokens_per_day' AND l.as_of < c.today THEN 0 ELSE l.used END AS used,
        greatest(0, CAST(extract(epoch FROM c.now - l.as_of) AS float8)) AS idle_seconds,
        greatest(0, CAST(extract(epoch FROM c.now - l.since) AS float8)) AS age_seconds,
        CAST(extract(epoch FROM c.today + interval '1 day' - c.now) AS float8) AS day_seconds,
        CAST(coalesce(g.given, 0) AS float8) AS given, CAST(coalesce(g.recent, 0) AS float8) AS recent,
        CASE WHEN l.kind = 'stored_bytes' THEN coalesce(s.stored_bytes, p.stored_bytes) ELSE 0 END AS stored
    FROM limits l CROSS JOIN clock c
    JOIN projects p ON p.id = l.project LEFT JOIN counted s ON s.id = l.project
    LEFT JOIN gained g ON g.project = l.project AND g.model = l.model AND g.kind = l.kind
    WHERE l.project = ANY(:projects) ORDER BY l.project, l.model, l.kind
    """
)


@dataclass(frozen=True, slots=True)
class _Taken:
    """A row of `limits` as it is written."""

    project: str
    model: str
    kind: str
    used: float
    drained_per_second: float
    as_of: datetime


_TAKEN: Columns[_Taken] = Columns(
    Column("project", "text"),
    Column("model", "text"),
    Column("kind", "text"),
    Column("used", "float8"),
    Column("drained_per_second", "float8"),
    Column("as_of", "timestamptz"),
)
_WRITE = text(
    f"""
    UPDATE limits l SET used = t.used, drained_per_second = t.drained_per_second, as_of = greatest(l.as_of, t.as_of)
    FROM unnest({named_arrays(_TAKEN)}) AS t({_TAKEN.names})
    WHERE l.project = t.project AND l.model = t.model AND l.kind = t.kind
    """
)

_LOCK_LIMITS = text("SELECT kind FROM limits WHERE project = :project ORDER BY project, model, kind FOR UPDATE")
_WITH_NOTES = text("SELECT project FROM settlements UNION SELECT project FROM stored_changes ORDER BY project")
_FIND = text("SELECT project, model, kind, value FROM limits WHERE project = :project ORDER BY model, kind")
_COUNT = text("SELECT count(*) FROM limits WHERE project = :project")
_PUT = text(
    """
    INSERT INTO limits (project, model, kind, value, since, as_of)
    VALUES (:project, :model, :kind, :value, clock_timestamp(), clock_timestamp())
    ON CONFLICT (project, model, kind) DO UPDATE SET value = excluded.value
    """
)
_REMOVE = text("DELETE FROM limits WHERE project = :project AND model = :model AND kind = :kind")


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One limit, as the operator set it."""

    project: str
    model: str
    """Or ALL_MODELS."""
    kind: LimitKind
    value: int


@dataclass(frozen=True, slots=True)
class Held:
    """The limits of locked projects, up to date; `write` stores them before the transaction ends."""

    projects: frozenset[str]
    """Projects that were locked."""
    states: list[LimitState]
    """Ordered by project."""
    _rows: Sequence[Row[tuple[object, ...]]]
    _drains: Sequence[float]

    async def write(
        self, connection: AsyncConnection, states: Iterable[LimitState], *, unchanged: bool = False
    ) -> None:
        """Stores `states`, which have the order of `self.states`.

        A row that only time has changed is left alone, since the next reader computes the same from it. With
        `unchanged` it is stored too: a new value must not refill the time before it.
        """
        each = zip(states, self.states, self._rows, self._drains, strict=True)
        taken = [
            _Taken(state.project, state.model, state.kind.value, max(0.0, state.used - row.stored), drain, row.now)
            for state, before, row, drain in each
            if unchanged or state != before or row.given or row.recent
        ]
        if taken:
            await connection.execute(_WRITE, _TAKEN.named_parameters(taken))


async def lock(connection: AsyncConnection, project_ids: Collection[str], *, skip_locked: bool = False) -> list[str]:
    """Locks the projects for the rest of the transaction, as `hold` does; returns those that there are."""
    statement = _LOCK_IF_FREE if skip_locked else _LOCK
    return list((await connection.execute(statement, {"projects": sorted(set(project_ids))})).scalars())


async def hold(connection: AsyncConnection, project_ids: Collection[str], *, skip_locked: bool = False) -> Held:
    """Locks the projects for the rest of the transaction, and returns their limits with everything settled.

    With `skip_locked` it waits for no lock: projects that another transaction has locked are left out. The caller must
    write the limits: the settlements are gone.
    """
    locked = await lock(connection, project_ids, skip_locked=skip_locked)
    if not locked:
        return Held(frozenset(), [], (), ())
    rows = (await connection.execute(_READ, {"projects": locked})).all()
    drains = [drain_after(row.drained_per_second, row.idle_seconds, row.recent) for row in rows]
    states = [_state(row, drain) for row, drain in zip(rows, drains, strict=True)]
    return Held(frozenset(locked), states, rows, drains)


def _state(row: Row[tuple[object, ...]], drain: float) -> LimitState:
    kind = LimitKind(row.kind)
    used = decayed(row.used, row.value, row.idle_seconds) if kind in PER_MINUTE else row.used
    return LimitState(
        project=row.project,
        model=row.model,
        kind=kind,
        value=row.value,
        used=max(0.0, used - row.given) + row.stored,
        drained_per_second=unbiased_drain(drain, row.age_seconds),
        day_seconds=row.day_seconds,
    )


async def settle(db: Database) -> None:
    """Adds up the notes of projects that reserve nothing at the moment, so that they do not pile up."""
    noted = [project for (project,) in await db.execute(_WITH_NOTES)]
    for first in range(0, len(noted), SETTLED_TOGETHER):
        async with db.begin() as connection:
            held = await hold(connection, noted[first : first + SETTLED_TOGETHER], skip_locked=True)
            await held.write(connection, held.states)


async def find(db: Database, project: str) -> list[LimitRow]:
    """The limits of a project."""
    rows = await db.execute(_FIND, {"project": project})
    return [LimitRow(row.project, row.model, LimitKind(row.kind), row.value) for row in rows]


async def states(db: Database, project: str) -> list[LimitState]:
    """The limits of a project with what is taken of them now."""
    async with db.begin(waits=True) as connection:
        held = await hold(connection, [project])
        await held.write(connection, held.states)
    return held.states


async def check_stored(connection: AsyncConnection, project: str, size: int) -> None:
    """Raises LimitReached if the project may not store so many bytes more.

    The project is locked until the transaction ends, which stores them: nobody else takes the same room.
    """
    held = await hold(connection, [project])
    await held.write(connection, held.states)
    if (shortage := admit_stored(held.states, project, size)) is not None:
        raise LimitReached(shortage)


async def put(connection: AsyncConnection, limit: LimitRow, max_limits: int) -> bool:
    """Sets a limit. One that is there keeps what is taken of it. Returns False if the project has `max_limits` others.

    Responses that were inserted before a new limit do not count in it. The project must exist.
    """
    # Charges lock limits and no project. Then `hold` brings every limit up to date: one on a minute has been refilled
    # at its old speed until now.
    await connection.execute(_LOCK_LIMITS, {"project": limit.project})
    held = await hold(connection, [limit.project])
    await held.write(connection, held.states, unchanged=True)
    count = int((await connection.execute(_COUNT, {"project": limit.project})).scalar_one())
    known = any((state.model, state.kind) == (limit.model, limit.kind) for state in held.states)
    if not known and count >= max_limits:
        return False
    await connection.execute(_PUT, {**asdict(limit), "kind": limit.kind.value})
    return True


async def remove(connection: AsyncConnection, project: str, model: str, kind: LimitKind) -> bool:
    """Removes a limit; returns whether there was one. The project is locked."""
    removed = await connection.execute(_REMOVE, {"project": project, "model": model, "kind": kind.value})
    return bool(removed.rowcount)
