"""Inserting new responses: those that come during one insert share the next one, in one statement and one commit.

Responses of projects with limits share inserts of their own, which reserve in the same transaction (limits.py). Such an
insert waits for no project's lock: if a project is locked, its responses leave the batch and wait in a batch of their
project, so that the others do not wait with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from sqlalchemy.ext.asyncio import AsyncConnection

from app.batching import Batcher
from app.protocol.errors import LimitReached
from app.protocol.limits import Allowance, LimitState, Shortage, admit
from app.store import limits
from app.store.database import Database, StoreUnavailable
from app.store.limits import Held
from app.store.new_rows import Item, NewRow, insert
from app.store.responses import get_by_key
from app.store.rows import NewResponse, ResponseRow

MAX_BATCH = 256
HEAVY_BYTES = 64 * 1024
"""A request counts as one more row for every so many bytes: a batch must stay below Postgres' limit of 1 GiB."""
LARGE_WEIGHT = 8
"""Half a megabyte takes tens of milliseconds to be inserted."""


class _Locked:
    """Another transaction reserves for the same project."""


@dataclass(frozen=True, slots=True)
class _Inserted:
    sends: int
    """How many messages are to be sent at once: 1, or 0 for a response that waits."""
    allowance: Allowance | None
    """What the limits of the project leave; None without limits."""


_Result = _Inserted | Shortage | None
"""None: the idempotency key is taken."""


class Inserter:
    """Inserts responses as `queued`, each with its opening events, committed together.

    Large ones are inserted one by one beside the others, which do not wait for them. `send` is called for each
    response that is to be sent at once; the others wait for a dispatch.
    """

    def __init__(self, db: Database, send: Callable[[NewResponse], None] = lambda _: None) -> None:
        self._db = db
        self._send = send
        away = (StoreUnavailable,)
        self._batches = Batcher(self._insert, max_items=MAX_BATCH, weight=_weight, shared_errors=away)
        self._large = Batcher(self._insert, max_items=1, shared_errors=away)
        self._limited = Batcher(self._reserve_if_free, max_items=MAX_BATCH, weight=_weight, shared_errors=away)
        self._large_limited = Batcher(self._reserve_if_free, max_items=1, shared_errors=away)
        self._contended: dict[str, Batcher[Item, _Result]] = {}
        """By project: those that wait for its lock."""

    async def create(self, new: NewResponse) -> ResponseRow | Allowance | None:
        """Inserts a response, and returns what its project's limits leave, or None without limits.

        If the project has a response with the same idempotency key, returns that one, and inserts nothing. Raises
        StoreUnavailable, and LimitReached if the response does not fit into a limit.
        """
        row = NewRow.of(new)
        item = (row, new.opening)
        while (result := await self._submit(item)) is None:
            assert new.idempotency is not None
            if (existing := await get_by_key(self._db, new.project, new.idempotency.key)) is not None:
                return existing
            # The response with that key was deleted in the meantime, so the key is free.
        if isinstance(result, Shortage):
            raise LimitReached(result)
        if result.sends:
            self._send(new)
        return result.allowance

    async def close(self) -> None:
        await self._batches.close()
        await self._large.close()
        await self._limited.close()
        await self._large_limited.close()
        for batches in self._contended.values():
            await batches.close()

    async def _submit(self, item: Item) -> _Result:
        is_large, project = _weight(item) > LARGE_WEIGHT, item[0].project
        if item[0].reserved_bytes is None:
            return await (self._large if is_large else self._batches).submit(item)
        if project not in self._contended:
            result = await (self._large_limited if is_large else self._limited).submit(item)
            if not isinstance(result, _Locked):
                return result
        return await self._in_turn(project, item)

    async def _in_turn(self, project: str, item: Item) -> _Result:
        """Waits for the project's lock, together with its other responses that do."""
        if (batches := self._contended.get(project)) is None:
            batches = Batcher(self._reserve, max_items=MAX_BATCH, weight=_weight, shared_errors=(StoreUnavailable,))
            self._contended[project] = batches
        try:
            return await batches.submit(item)
        finally:
            if batches.is_idle and self._contended.get(project) is batches:
                del self._contended[project]

    async def _insert(self, batch: Sequence[Item]) -> list[_Result]:
        """Inserts rows without limits."""
        async with self._db.autocommit() as connection:
            sends = await insert(connection, batch)
        return [_Inserted(sends[row.id], None) if row.id in sends else None for row, _ in batch]

    async def _reserve_if_free(self, batch: Sequence[Item]) -> list[_Result | _Locked]:
        """Inserts the rows that fit into the limits of their projects, but not those of locked projects."""
        async with self._db.begin() as connection:
            held = await limits.hold(connection, [row.project for row, _ in batch], waits=False)
            ours = [item for item in batch if item[0].project in held.projects]
            results = iter(await _reserve(connection, held, ours) if ours else ())
        return [next(results) if row.project in held.projects else _Locked() for row, _ in batch]

    async def _reserve(self, batch: Sequence[Item]) -> list[_Result]:
        """Inserts the rows that fit into the limits of their projects, once nobody else has those locked."""
        async with self._db.begin() as connection:
            held = await limits.hold(connection, [row.project for row, _ in batch])
            return await _reserve(connection, held, batch)


async def _reserve(connection: AsyncConnection, held: Held, batch: Sequence[Item]) -> list[_Result]:
    """Inserts the rows that fit, and stores what they take."""
    rows = [row for row, _ in batch]
    admitted = _admitted(held.states, rows)
    fitting = [item for item, result in zip(batch, admitted, strict=True) if isinstance(result, Allowance)]
    sends = await insert(connection, fitting) if fitting else {}
    await held.write(connection, _taken(held.states, [row for row, _ in fitting if row.id in sends]))
    return [
        result if isinstance(result, Shortage) else _Inserted(sends[row.id], result) if row.id in sends else None
        for row, result in zip(rows, admitted, strict=True)
    ]


def _admitted(states: Sequence[LimitState], rows: Sequence[NewRow]) -> list[Allowance | Shortage]:
    """Returns for each row what is left after it, or why it does not fit; the earlier ones come first."""
    by_project, results = _by_project(states), list[Allowance | Shortage]()
    for row in rows:
        after = admit(by_project.get(row.project, []), row.project, row.model, row.reservation)
        if isinstance(after, Shortage):
            results.append(after)
        else:
            by_project[row.project] = after
            results.append(Allowance.of(state for state in after if state.covers(row.project, row.model)))
    return results


def _taken(states: Sequence[LimitState], rows: Sequence[NewRow]) -> list[LimitState]:
    """Returns the states, in their order, after the rows, which fit, have reserved."""
    by_project = _by_project(states)
    for row in rows:
        own = by_project.get(row.project, [])
        by_project[row.project] = [
            state.take(row.reservation) if state.covers(row.project, row.model) else state for state in own
        ]
    return [state for own in by_project.values() for state in own]


def _by_project(states: Sequence[LimitState]) -> dict[str, list[LimitState]]:
    """A batch may have as many projects as rows: each row is held against the limits of its own alone."""
    return {project: list(own) for project, own in groupby(states, attrgetter("project"))}


def _weight(item: Item) -> int:
    row, opening = item
    return 1 + (len(row.request) + len(opening.frames)) // HEAVY_BYTES
