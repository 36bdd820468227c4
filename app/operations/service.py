"""The operators' service: what they see of all projects."""

from __future__ import annotations

from collections.abc import Sequence

from app.operations.workers import SeenWorker, seen
from app.store.database import Database
from app.store.queue import roster
from app.store.queue.pace import tokens_per_second


class OperatorService:
    """What operators read. Every method raises StoreUnavailable; none needs Redis."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def workers(self) -> Sequence[SeenWorker]:
        rows, paces = await roster.read(self._db)
        return seen(rows, tokens_per_second(paces))
