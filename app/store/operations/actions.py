"""Bulk actions: what operators want done to all responses that match a filter, and how far it has come.

Maintenance carries an action out in steps. Each step is one transaction: it locks the action's row, acts on the next
responses, and notes how far it has come. So a process that dies in a step has done nothing of it, and the next one, of
whatever process, goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.types import Json
from app.store.columns import to_json
from app.store.database import Database, one
from app.store.operations.filters import Place, ResponseFilter
from app.store.paging import Listing, Page
from app.store.rows import Notice

log = logging.getLogger("longhaul.store")


class ActionKind(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"


class ActionState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


UNREADABLE_FILTER = "unreadable_filter"
"""Why an action fails: its filter says what this version does not know, and nothing may act on a part of it."""


@dataclass(frozen=True, slots=True)
class NewAction:
    """An action about to be inserted."""

    id: str
    kind: ActionKind
    only: ResponseFilter
    reason: str
    actor: str | None
    """The id of the API key; None: no key was asked for."""
    matched: int
    """How many responses match now."""
    batches: int = 0
    """How many batches the transaction has made `cancelling`."""


@dataclass(frozen=True, slots=True)
class ActionRow:
    """One action, as Postgres has it."""

    id: str
    kind: ActionKind
    filter: Json
    """The filter as the operator asked for it. Another version may have written it."""
    reason: str
    actor: str | None
    state: ActionState
    created_at: datetime
    finished_at: datetime | None
    matched: int
    done: int
    batches: int
    """How many batches it has made `cancelling`."""
    refused: Mapping[str, int]
    """How many responses it left as they are, by the code of the reason."""
    cursor: Place | None
    """The last response that this pass has looked at."""
    passed_by: int
    """Responses of this pass that other transactions held or changed meanwhile; another pass looks at them."""

    @property
    def only(self) -> ResponseFilter:
        """The filter. Those that `running` has returned can be read."""
        return ResponseFilter.from_json(self.filter)

    @property
    def bounded(self) -> ResponseFilter:
        """The filter of the responses that it acts on: those that were there when it was accepted."""
        only = self.only
        return replace(only, created_before=min(only.created_before or self.created_at, self.created_at))


@dataclass(frozen=True, slots=True)
class Step:
    """One step, once it is committed."""

    action: ActionRow
    """How the action is after it."""
    ended: Sequence[Notice] = ()
    """The responses that it has ended."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The counts of one step."""

    cursor: Place | None
    """The last response that it has looked at; None: it has come to the end of this pass."""
    done: int = 0
    passed_by: int = 0
    refused: Mapping[str, int] | None = None


_COLUMNS = """id, kind, filter, reason, actor, state, created_at, finished_at, matched, done, batches, refused,
    cursor_at, cursor_position, passed_by"""
_ADD = text(
    f"""
    INSERT INTO bulk_actions (id, kind, filter, reason, actor, matched, batches)
    VALUES (:id, :kind, CAST(:filter AS json), :reason, :actor, :matched, :batches)
    RETURNING {_COLUMNS}
    """
)
_FIND = text(f"SELECT {_COLUMNS} FROM bulk_actions WHERE id = :id")
_LIST = Listing(f"SELECT {_COLUMNS} FROM bulk_actions")
_RUNNING = text(f"SELECT {_COLUMNS} FROM bulk_actions WHERE state = 'running' ORDER BY created_at")
_COUNT_RUNNING = text("SELECT count(*) FROM bulk_actions WHERE state = 'running'")
_LOCK = text(f"SELECT {_COLUMNS} FROM bulk_actions WHERE id = :id AND state = 'running' FOR UPDATE SKIP LOCKED")
_STEP = text(
    f"""
    UPDATE bulk_actions SET done = done + :done, refused = CAST(:refused AS json),
        passed_by = :passed_by, cursor_at = CAST(:cursor_at AS timestamptz),
        cursor_position = CAST(:cursor_position AS bigint),
        state = CAST(:state AS text),
        finished_at = CASE WHEN CAST(:state AS text) = 'running' THEN NULL ELSE clock_timestamp() END
    WHERE id = :id RETURNING {_COLUMNS}
    """
)
_CANCEL = text(
    """
    UPDATE bulk_actions SET state = 'cancelled', finished_at = clock_timestamp() WHERE id = :id AND state = 'running'
    RETURNING id
    """
)
_FAIL = text(
    """
    UPDATE bulk_actions SET state = 'failed', finished_at = clock_timestamp(), refused = CAST(:refused AS json)
    WHERE id = :id AND state = 'running' RETURNING id
    """
)


async def add(connection: AsyncConnection, new: NewAction) -> ActionRow:
    columns = {name: getattr(new, name) for name in ("id", "reason", "actor", "matched", "batches")}
    values = {**columns, "kind": new.kind.value, "filter": to_json(new.only.as_json())}
    return _row(**(await connection.execute(_ADD, values)).one()._mapping)


async def find(db: Database, action_id: str) -> ActionRow | None:
    return await one(_row, db, _FIND, {"id": action_id})


async def find_page(db: Database, page: Page) -> tuple[list[ActionRow], bool]:
    """A page of actions, and whether there are more."""
    return await _LIST.read(db, page, _row)


async def count_running(connection: AsyncConnection) -> int:
    return int((await connection.execute(_COUNT_RUNNING)).scalar_one())


async def cancel(connection: AsyncConnection, action_id: str) -> bool:
    """No further step of the action begins; returns whether it was running. Waits for a step that is under way."""
    return (await connection.execute(_CANCEL, {"id": action_id})).first() is not None


async def running(db: Database) -> Sequence[ActionRow]:
    """The actions that are not at their end, the oldest first. One whose filter cannot be read fails."""
    found: list[ActionRow] = []
    for row in [_row(**each._mapping) for each in await db.execute(_RUNNING)]:
        try:
            row.only  # noqa: B018 - reads it
        except (ValueError, TypeError, AttributeError) as error:
            left = max(0, row.matched - row.done - sum(row.refused.values()))
            refused = to_json({**row.refused, UNREADABLE_FILTER: left})
            if await db.execute(_FAIL, {"id": row.id, "refused": refused}, waits=True):
                log.error("%s fails: %s (%s)", row.id, UNREADABLE_FILTER, type(error).__name__)
        else:
            found.append(row)
    return found


async def lock(connection: AsyncConnection, seen: ActionRow) -> bool:
    """Locks an action for a step; returns whether it still is where it was `seen`, and no other process has it."""
    return await one(_row, connection, _LOCK, {"id": seen.id}) == seen


async def note(connection: AsyncConnection, seen: ActionRow, progress: Progress) -> ActionRow:
    """Notes a step of a locked action, and returns how the action is then.

    A pass at its end begins again if it has passed by responses.
    """
    passed_by = seen.passed_by + progress.passed_by
    ends = progress.cursor is None and not passed_by
    refused = dict(seen.refused)
    for code, count in (progress.refused or {}).items():
        refused[code] = refused.get(code, 0) + count
    values = {
        "id": seen.id,
        "done": progress.done,
        "refused": to_json(refused),
        "passed_by": 0 if progress.cursor is None else passed_by,
        "cursor_at": None if progress.cursor is None else progress.cursor.inserted_at,
        "cursor_position": None if progress.cursor is None else progress.cursor.position,
        "state": (ActionState.COMPLETED if ends else ActionState.RUNNING).value,
    }
    return _row(**(await connection.execute(_STEP, values)).one()._mapping)


def _row(kind: str, state: str, cursor_at: datetime | None, cursor_position: int | None, **columns: Any) -> ActionRow:
    cursor = None if cursor_at is None or cursor_position is None else Place(cursor_at, cursor_position)
    return ActionRow(kind=ActionKind(kind), state=ActionState(state), cursor=cursor, **columns)
