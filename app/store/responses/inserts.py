"""Inserting new responses: those that come during one insert share the next one, in one statement and one commit.

Those of projects with limits reserve in the same transaction (limits.py). An insert that projects share waits for no
project's lock: if one is locked, its responses leave the batch and wait in a batch of their own project, so that the
others do not wait with them. A large response has an insert of its own there, too, and the projects take turns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.errors import LimitReached, ModelPaused
from app.protocol.limits import Allowance, LimitState, Shortage, admit, admit_line, never_fits, take_all
from app.scheduling.decisions import Sending
from app.sizes import is_large
from app.store.by_project import LOCKED_AT_ONCE, ByProject, batches
from app.store.database import Database
from app.store.responses.lines import Lines
from app.store.responses.lookup import get_by_key
from app.store.responses.new_rows import MAX_BATCH, NewResponse, insert, insert_waiting
from app.store.rows import ResponseFlags
from app.store.tenants import limits
from app.store.tenants.limits import Held


@dataclass(frozen=True, slots=True)
class _Inserted:
    sending: Sending
    allowance: Allowance | None
    """What the limits of the project leave; None without limits."""


class _NotInserted(Enum):
    KEY_TAKEN = "the project has a response with this idempotency key"
    LOCKED = "another transaction reserves for the project"
    PAUSED = "its model, or its project there, is paused"


Result: TypeAlias = _Inserted | _NotInserted | Shortage
Put: TypeAlias = Callable[[AsyncConnection, Sequence[NewResponse]], Awaitable[dict[str, Sending]]]


class Inserter:
    """Inserts responses as `queued`, each with its opening events, committed together.

    Large ones have inserts of their own beside the others, which do not wait for them. `send` is called for each
    response with what becomes of its message.
    """

    def __init__(self, db: Database, send: Callable[[NewResponse, Sending], None] = lambda *_: None) -> None:
        self._db = db
        self._send = send
        self._lines = Lines()
        self._shared = batches(self._insert, MAX_BATCH)
        self._own: ByProject[NewResponse, Result] = ByProject(self._insert_of_project, MAX_BATCH, LOCKED_AT_ONCE)

    async def create(self, new: NewResponse) -> ResponseFlags | Allowance | None:
        """Inserts a response, and returns what its project's limits leave, or None without limits.

        If the project has a response with the same idempotency key, returns that one, and inserts nothing. Raises
        StoreUnavailable, LimitReached if the response does not fit into a limit, and ModelPaused if it is not accepted
        now.
        """
        while not isinstance(result := await self._submit(new), _Inserted):
            if isinstance(result, Shortage):
                raise LimitReached(result)
            if result is _NotInserted.PAUSED:
                raise ModelPaused(new.model)
            assert new.idempotency is not None
            if (existing := await get_by_key(self._db, new.project, new.idempotency.key)) is not None:
                return existing
            # The response with that key was deleted in the meantime, so the key is free.
        self._send(new, result.sending)
        return result.allowance

    async def close(self) -> None:
        await self._shared.close()
        await self._own.close()

    async def _submit(self, new: NewResponse) -> Result:
        if not (is_large(new.size) or (new.is_limited and new.project in self._own)):
            result = await self._shared.submit(new)
            if result is not _NotInserted.LOCKED:
                return result
        return await self._own.submit(new)

    async def _insert(self, batch: Sequence[NewResponse]) -> list[Result]:
        """Inserts the responses that fit into the limits of their projects, but not those of locked projects."""
        if not (limited := {new.project for new in batch if new.is_limited}):
            async with self._db.driver_connection() as connection:
                sends = await insert(self._db, connection, batch, self._lines)
            return [_inserted(new, sends) for new in batch]
        async with self._db.begin() as connection:
            held = await limits.hold(connection, limited, skip_locked=True)
            free = [new for new in batch if new.project in held.projects or not new.is_limited]
            results = await reserve(connection, held, free, self._put)
        return [results.get(new.id, _NotInserted.LOCKED) for new in batch]

    async def _insert_of_project(self, batch: Sequence[NewResponse]) -> list[Result]:
        """Inserts the responses that fit into the limits of their project, once nobody else has it locked."""
        limited = {new.project for new in batch if new.is_limited}
        async with self._db.begin(large=any(is_large(new.size) for new in batch), waits=bool(limited)) as connection:
            held = await limits.hold(connection, limited)
            return list((await reserve(connection, held, batch, self._put)).values())

    async def _put(self, connection: AsyncConnection, batch: Sequence[NewResponse]) -> dict[str, Sending]:
        return await insert(connection, connection, batch, self._lines)


async def insert_lines(connection: AsyncConnection, lines: Sequence[NewResponse]) -> tuple[int, Shortage | None]:
    """Inserts lines of a batch, the first ones that fit into what the limits of their project leave to lines.

    All of them wait for a dispatch. Returns how many, and why the next one never fits; None: there is none, or it fits
    later.
    """
    held = await limits.hold(connection, {new.project for new in lines if new.is_limited})
    left, fitting, never = _by_project(held.states), list[NewResponse](), None
    for new in lines:
        if (reserved := new.reservation) is not None:
            after = admit_line(left.get(new.project, []), new.project, new.model, reserved)
            if after is None:
                never = never_fits(held.states, new.project, new.model, reserved)
                break
            left[new.project] = after
        fitting.append(new)
    if fitting:
        await insert_waiting(connection, fitting)
    await held.write(connection, [state for own in left.values() for state in own])
    return len(fitting), never


async def reserve(connection: AsyncConnection, held: Held, batch: Sequence[NewResponse], put: Put) -> dict[str, Result]:
    """Inserts the responses that fit, and stores what they take; returns the results by their ids, in order.

    `put` inserts those that fit, and returns what became of each that it has inserted.
    """
    left = _by_project(held.states)
    allowances = {new.id: _admit(left, new) if new.is_limited else None for new in batch}
    fitting = [new for new in batch if not isinstance(allowances[new.id], Shortage)]
    sends = await put(connection, fitting) if fitting else {}
    inserted = [new for new in fitting if new.id in sends and not sends[new.id].is_refused]
    await held.write(connection, _taken(held.states, [new for new in inserted if new.is_limited]))
    return {
        new.id: allowance if isinstance(allowance := allowances[new.id], Shortage) else _inserted(new, sends, allowance)
        for new in batch
    }


def _inserted(new: NewResponse, sends: Mapping[str, Sending], allowance: Allowance | None = None) -> Result:
    """`sends` is what `insert` has returned."""
    if (sending := sends.get(new.id)) is None:
        return _NotInserted.KEY_TAKEN
    return _NotInserted.PAUSED if sending.is_refused else _Inserted(sending, allowance)


def _admit(left: dict[str, list[LimitState]], new: NewResponse) -> Allowance | Shortage:
    """Returns what is left after the response, or why it does not fit. Changes `left`."""
    assert new.reservation is not None
    after = admit(left.get(new.project, []), new.project, new.model, new.reservation)
    if isinstance(after, Shortage):
        return after
    left[new.project] = after
    return Allowance.of(state for state in after if state.covers(new.project, new.model))


def _taken(states: Sequence[LimitState], batch: Sequence[NewResponse]) -> list[LimitState]:
    """Returns the states, in their order, after the responses, which fit, have reserved."""
    left = _by_project(states)
    for new in batch:
        assert new.reservation is not None
        left[new.project] = take_all(left.get(new.project, []), new.project, new.model, new.reservation)
    return [state for own in left.values() for state in own]


def _by_project(states: Sequence[LimitState]) -> dict[str, list[LimitState]]:
    """A batch may have as many projects as rows: each row is held against the limits of its own alone."""
    return {project: list(own) for project, own in groupby(states, attrgetter("project"))}
