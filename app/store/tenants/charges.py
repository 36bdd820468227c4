"""Charging limits on a minute before anything else is done: what a request costs, it costs also when it is refused.

Nothing is given back, so nothing settles it. Requests that arrive together share one statement, which waits for no
lock: those whose limit somebody has locked (an operator who changes it) wait in a batch of their project.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import ClassVar, TypeAlias

from sqlalchemy import TextClause, text

from app.protocol.limits import LimitKind, LimitState, Shortage, charged
from app.store.by_project import LOCKED_AT_ONCE, ByProject, batches
from app.store.database import Database

MAX_BATCH = 1024


@dataclass(frozen=True, slots=True)
class Charge:
    """One request, to be charged to one limit."""

    project: str
    model: str
    """Or ALL_MODELS."""
    kind: LimitKind
    weight: ClassVar[int] = 1


class _Locked(Enum):
    LOCKED = "another transaction has locked the limit, or there is none"


_Result: TypeAlias = LimitState | Shortage | _Locked | None


def _charging(waiting: str = "") -> TextClause:
    """Locks the limits in their order, and takes as many requests of each as have room; returns what was taken before.

    A row that another transaction changed meanwhile is read again once it is locked.
    """
    return text(
        f"""
        WITH found AS MATERIALIZED (
            SELECT l.project, l.model, l.kind, l.value, a.requests, clock_timestamp() AS now,
                greatest(0, l.used - l.value
                    * greatest(0, CAST(extract(epoch FROM clock_timestamp() - l.as_of) AS float8)) / 60) AS used
            FROM unnest((SELECT CAST(:projects AS text[])), CAST(:models AS text[]), CAST(:kinds AS text[]),
                CAST(:requests AS int[])) AS a(project, model, kind, requests)
            JOIN limits l ON l.project = a.project AND l.model = a.model AND l.kind = a.kind
            ORDER BY l.project, l.model, l.kind FOR NO KEY UPDATE OF l {waiting}
        ), taken AS (
            UPDATE limits l SET used = f.used + least(f.requests, floor(f.value - f.used)),
                as_of = greatest(l.as_of, f.now)
            FROM found f
            WHERE l.project = f.project AND l.model = f.model AND l.kind = f.kind AND f.used + 1 <= f.value
        )
        SELECT project, model, kind, value, used, requests FROM found
        """
    )


_CHARGE, _CHARGE_FREE = _charging(), _charging("SKIP LOCKED")


class Charger:
    """Charges requests to the limits of their projects, in the order in which they arrive."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._together = batches(partial(self._charge, _CHARGE_FREE), MAX_BATCH)
        charge = partial(self._charge, _CHARGE, waits=True)
        self._locked: ByProject[Charge, _Result] = ByProject(charge, MAX_BATCH, LOCKED_AT_ONCE)

    async def take(self, charge: Charge) -> LimitState | Shortage | None:
        """Returns the limit after the request, why there is no room, or None without such a limit.

        Raises StoreUnavailable.
        """
        if charge.project not in self._locked:
            result = await self._together.submit(charge)
            if not isinstance(result, _Locked):
                return result
        result = await self._locked.submit(charge)
        return None if isinstance(result, _Locked) else result

    async def close(self) -> None:
        await self._together.close()
        await self._locked.close()

    async def _charge(self, statement: TextClause, batch: Sequence[Charge], *, waits: bool = False) -> list[_Result]:
        counts = Counter(batch)
        names = {"projects": [each.project for each in counts], "models": [each.model for each in counts]}
        values = {**names, "kinds": [each.kind.value for each in counts], "requests": list(counts.values())}
        rows = await self._db.execute(statement, values, waits=waits)
        results = {
            Charge(row.project, row.model, kind := LimitKind(row.kind)): iter(
                charged(LimitState(row.project, row.model, kind, row.value, row.used), row.requests)
            )
            for row in rows
        }
        return [next(results[each]) if each in results else _Locked.LOCKED for each in batch]
