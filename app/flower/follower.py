"""Keeps what Flower shows true: events come from Redis, which may lose them, and Postgres is the truth.

Events show most things at once. Every FOLLOW_SECONDS the rows correct them: what was lost, a worker that died and tells
nothing, a duplicate that another worker dropped, an end that came from outside. After a restart the rows show what is
unfinished. This relies on `flower.events.EventsState` and `celery.events.state.State` (flower 2.2, celery 5.7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from app.flower.tasks import FINAL, GONE, task_of
from app.protocol.text import type_and_places
from app.store.database import Database, StoreUnavailable
from app.store.migrate import wait_for_schema
from app.store.operations import listing
from app.store.operations.listing import ListedResponse

log = logging.getLogger("longhaul.flower")

FOLLOW_SECONDS = 2.0
SETTLE_SECONDS = 1.5
"""A row that was read so soon after an event, or before it, corrects nothing: the event may be newer."""


class Follower:
    """Corrects one state of Flower, on Flower's loop."""

    def __init__(self, db: Database, state: Any) -> None:
        self._db = db
        self._state = state
        self._open: set[str] = set()
        """Responses that were unfinished at the last look, or too new to be corrected: they are looked at once more."""
        self._listen(state)

    async def run(self) -> None:
        """Follows until it is cancelled."""
        await wait_for_schema(self._db)
        is_away = False
        while True:
            try:
                await self.look()
                is_away = False
            except StoreUnavailable as error:
                if not is_away:
                    log.error("Postgres is away (%s): until it is back, Flower shows events alone", error)
                is_away = True
            except Exception as error:
                log.error("what Flower shows cannot be corrected: %s", type_and_places(error))
            await asyncio.sleep(FOLLOW_SECONDS)

    async def look(self) -> None:
        """Shows what is unfinished, and what became of the rest. Raises StoreUnavailable."""
        read_at = monotonic()
        rows = await listing.find_unfinished(self._db, self._state.tasks.limit)
        listed = {row.id for row in rows}
        for row in rows:
            self._show(row, read_at)
        too_new = await self.look_at([each for each in {*self._open, *self._unfinished()} if each not in listed])
        self._open = {*listed, *too_new, *self._unfinished()}

    async def look_at(self, ids: Sequence[str], *, at_once: bool = False) -> set[str]:
        """Shows what the rows say of these; returns those whose last event is too new.

        `at_once`: whatever events said a moment ago. Raises StoreUnavailable.
        """
        read_at = monotonic() + (SETTLE_SECONDS if at_once else 0.0)
        rows = await listing.find(self._db, ids)
        too_new = {row.id for row in rows if not self._show(row, read_at)}
        for gone in set(ids) - {row.id for row in rows}:
            task = self._state.tasks.data.get(gone)
            if task is not None and task.state not in FINAL:
                self._update(gone, GONE, read_at)
        return too_new

    def _unfinished(self) -> list[str]:
        return [task_id for task_id, task in self._state.tasks.data.items() if task.state not in FINAL]

    def _show(self, row: ListedResponse, read_at: float) -> bool:
        task = self._state.tasks.data.get(row.id)
        if task is None and row.finished_at is not None:
            return True  # dropped from Flower's memory meanwhile
        fields = task_of(row, "PENDING" if task is None else task.state)
        node = fields["worker"]
        fields["worker"] = None if node is None else self._state.get_or_create_worker(node)[0]
        if row.sent_at is not None and (task is None or task.received is None):
            fields["received"] = row.sent_at.timestamp()
        return self._update(row.id, fields, read_at)

    def _update(self, task_id: str, fields: Mapping[str, Any], read_at: float) -> bool:
        """False: an event may be newer."""
        state = self._state
        evicted = state._eviction_candidate(task_id)
        task, _ = state.get_or_create_task(task_id)  # as the one that was used last: it is not dropped next
        if getattr(task, "heard_at", 0.0) > read_at - SETTLE_SECONDS:
            return False
        if any(getattr(task, name, None) != value for name, value in fields.items()):
            task.__dict__.update(fields)
            state._index_task(task, evicted)
        return True

    def _listen(self, state: Any) -> None:
        """Notes when each task's last event came. A task is pickled without this."""
        take = state.event

        def event(event: Any) -> None:
            take(event)
            if (task := state.tasks.data.get(event.get("uuid"))) is not None:
                task.heard_at = monotonic()

        state.event = event
