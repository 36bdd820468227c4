"""Carrying out bulk actions (app/store/operations/actions.py)."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from app.announcer import Announcer
from app.responses.create.retried import retried
from app.store.database import Database
from app.store.operations import actions, cancels, retries
from app.store.operations.actions import ActionKind, ActionRow, Step
from config.settings import Settings

log = logging.getLogger("longhaul.maintenance")

TURN_SECONDS = 2.0
"""Seconds that one action may take while others wait."""


class BulkWork:
    """The steps of bulk actions, on two connections of their own: nothing else waits for them."""

    def __init__(self, db: Database, announcer: Announcer, settings: Settings) -> None:
        self._db = db.sibling(2)
        self._announcer = announcer
        self._retried = partial(retried, reserved_tokens=settings.reserved_output_tokens)

    async def close(self) -> None:
        await self._db.close()

    async def carry_out(self) -> None:
        """Carries out what actions have left, each in turn; what others have locked waits for the next call."""
        held_up: set[str] = set()
        while waiting := [each for each in await actions.running(self._db) if each.id not in held_up]:
            for action in waiting:
                if not await self._turn(action):
                    held_up.add(action.id)

    async def _turn(self, action: ActionRow) -> bool:
        """Goes on with an action for a while; returns whether there is more of it to do at once."""
        until = time.monotonic() + TURN_SECONDS
        async with aclosing(self._steps(action)) as steps:
            async for step in steps:
                await self._announcer.tell_all(step.ended)
                action = step.action
                if action.finished_at is not None:
                    counts = action.done, action.matched, action.batches
                    log.info("%s %s: %s of %s responses, %s batches", action.id, action.kind, *counts)
                elif action.cursor is not None and time.monotonic() > until:
                    return True
        return False

    def _steps(self, action: ActionRow) -> AsyncGenerator[Step]:
        if action.kind is ActionKind.CANCEL:
            return cancels.steps(self._db, action)
        return retries.steps(self._db, action, self._retried)
