"""Inserting new responses: those that come during one insert share the next one, in one statement and one commit.

Responses of projects with limits share inserts of their own, which reserve in the same transaction (limits.py). Such an
insert waits for no project's lock: if a project is locked, its responses leave the batch and wait in a batch of their
project, so that the others do not wait with them. Large responses are in batches of their projects, too, and the
projects take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Generic, TypeAlias, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from app.batching import Batcher
from app.protocol.errors import LimitReached
from app.protocol.limits import Allowance, LimitState, Shortage, admit
from app.sizes import is_large, weight
from app.store.database import Database, StoreUnavailable
from app.store.responses.lookup import get_by_key
from app.store.responses.new_rows import Item, NewRow, insert
from app.store.rows import NewResponse, ResponseRow
from app.store.tenants import limits
from app.store.tenants.limits import Held

R = TypeVar("R")
Perform: TypeAlias = Callable[[Sequence[Item]], Awaitable[Sequence[R]]]

MAX_BATCH = 256
LARGE_AT_ONCE = 2
"""Inserts of large responses that run at once."""
LOCKED_AT_ONCE = 4
"""Projects whose lock is waited for at once. Each has one of the pool's connections meanwhile."""


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


class _ByProject(Generic[R]):
    """Batches of single projects, each one after the other, and of all of them `at_once` at the same time.

    Projects take turns, however much one has waiting.
    """

    def __init__(self, perform: Perform[R], max_items: int, at_once: int) -> None:
        self._perform = perform
        self._max_items = max_items
        self._turns = asyncio.Semaphore(at_once)
        self._batches: dict[str, Batcher[Item, R]] = {}

    def __contains__(self, project: str) -> bool:
        """Whether anything of the project waits here, or runs."""
        return project in self._batches

    async def submit(self, item: Item) -> R:
        project = item[0].project
        if (batches := self._batches.get(project)) is None:
            batches = self._batches[project] = _batches(self._perform_in_turn, self._max_items)
        try:
            return await batches.submit(item)
        finally:
            if batches.is_idle and self._batches.get(project) is batches:
                del self._batches[project]

    async def close(self) -> None:
        for batches in list(self._batches.values()):
            await batches.close()

    async def _perform_in_turn(self, batch: Sequence[Item]) -> Sequence[R]:
        async with self._turns:
            return await self._perform(batch)


class Inserter:
    """Inserts responses as `queued`, each with its opening events, committed together.

    Large ones have inserts of their own beside the others, which do not wait for them. `send` is called for each
    response that is to be sent at once; the others wait for a dispatch.
    """

    def __init__(self, db: Database, send: Callable[[NewResponse], None] = lambda _: None) -> None:
        self._db = db
        self._send = send
        self._plain = _batches(self._insert, MAX_BATCH)
        self._limited = _batches(self._reserve_if_free, MAX_BATCH)
        self._large = _ByProject(self._insert_large, 1, LARGE_AT_ONCE)
        self._locked = _ByProject(self._reserve, MAX_BATCH, LOCKED_AT_ONCE)
        """Those that wait for their project's lock."""

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
        for batches in (self._plain, self._limited, self._large, self._locked):
            await batches.close()

    async def _submit(self, item: Item) -> _Result:
        if item[0].project in self._locked and _is_limited(item):
            return await self._locked.submit(item)
        if is_large(_size(item)):
            result = await self._large.submit(item)
        else:
            result = await (self._limited if _is_limited(item) else self._plain).submit(item)
        return await self._locked.submit(item) if isinstance(result, _Locked) else result

    async def _insert(self, batch: Sequence[Item]) -> list[_Result | _Locked]:
        """Inserts rows without limits."""
        async with self._db.autocommit() as connection:
            sends = await insert(connection, batch)
        return [_Inserted(sends[row.id], None) if row.id in sends else None for row, _ in batch]

    async def _insert_large(self, batch: Sequence[Item]) -> list[_Result | _Locked]:
        """Inserts one large row."""
        return await self._reserve_if_free(batch) if _is_limited(batch[0]) else await self._insert(batch)

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


def _batches(perform: Perform[R], max_items: int) -> Batcher[Item, R]:
    return Batcher(perform, max_items=max_items, weight=_weight, shared_errors=(StoreUnavailable,))


def _is_limited(item: Item) -> bool:
    return item[0].reserved_bytes is not None


def _weight(item: Item) -> int:
    return weight(_size(item))


def _size(item: Item) -> int:
    row, opening = item
    return len(row.request) + len(opening.frames)
