"""The operators' service: what they see of all projects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version

from app.ids import may_exist
from app.operations.backlog import BacklogEntry, added_up
from app.operations.explanation import Explanation, explain
from app.operations.notices import Names, Notice, notices
from app.operations.problems import SCHEMA_PROBLEM, Problem, in_both, problems
from app.operations.summary import ModelSummary, summaries
from app.operations.workers import SeenWorker, seen
from app.protocol.errors import NotFound
from app.protocol.text import shortened
from app.store import migrate
from app.store.database import Database
from app.store.layout import LAYOUT
from app.store.operations import casualties
from app.store.operations.casualties import Casualties
from app.store.queue import backlog, overview, pauses, response_facts, worker_rows
from app.store.queue.backlog import By
from app.store.queue.overview import Overview
from app.store.queue.pauses import PauseRow
from app.store.queue.response_facts import ResponseFacts
from app.store.tenants import full_limits
from app.store.tenants.full_limits import FullLimit
from app.streaming.pubsub import PubSub, PubSubUnavailable

REDIS_SECONDS = 1.0
"""How long Redis may take to answer."""
SECOND_LOOK_SECONDS = 1.5
"""Three rounds of maintenance: what is only brief has passed."""


class Grade(StrEnum):
    """How the deployment is."""

    FINE = "fine"
    ATTENTION = "attention"
    """Nothing is broken, but something is paused, drained or refused, stands still, or died of late."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Status:
    """The whole deployment."""

    version: str
    models: Sequence[ModelSummary]
    limits: Sequence[FullLimit]
    pauses: Sequence[PauseRow]
    problems: Sequence[Problem]
    notices: Sequence[Notice]

    @property
    def grade(self) -> Grade:
        if self.problems:
            return Grade.WRONG
        return Grade.ATTENTION if self.notices else Grade.FINE


class OperatorService:
    """What operators read. What is true comes from Postgres alone: every method raises StoreUnavailable."""

    def __init__(self, db: Database, pubsub: PubSub, models: Mapping[str, str], retention_seconds: float) -> None:
        """`models` are those of the models file, by queue; logs are kept for `retention_seconds`."""
        self._db = db
        self._pubsub = pubsub
        self._models = models
        self._retention_seconds = retention_seconds

    async def status(self) -> Status:
        """If something is wrong that may be so only for a moment, it looks a second time."""
        if not await migrate.is_supported(self._db):
            return Status(version("longhaul"), (), (), (), [SCHEMA_PROBLEM], ())
        look, lost, models, found = await self._look()
        if any(problem.is_brief for problem in found):
            await asyncio.sleep(SECOND_LOOK_SECONDS)
            look, lost, models, again = await self._look()
            found = in_both(found, again)
        async with self._db.begin() as connection:
            limits = await full_limits.read(connection)
            paused = await pauses.read_pauses(connection)
        names = await self._names(paused)
        told = notices(models, look.workers, lost.deaths, paused, limits, names)
        return Status(version("longhaul"), models, limits, paused, found, told)

    async def _names(self, paused: Sequence[PauseRow]) -> Names:
        """Of the projects and the operators of pauses."""
        projects = {each.project for each in paused if each.project is not None}
        keys = {each.actor for each in paused if each.actor is not None}
        return Names(
            await backlog.project_names(self._db, sorted(projects)) if projects else {},
            await backlog.key_names(self._db, sorted(keys)) if keys else {},
        )

    async def _look(self) -> tuple[Overview, Casualties, Sequence[ModelSummary], list[Problem]]:
        seen_, redis_answers = await asyncio.gather(self._overview(), self._redis_answers())
        models = summaries(seen_.fleet, seen_.workers, seen_.paces, seen_.states, self._models, LAYOUT)
        lost = await casualties.read(self._db)
        found = problems(models, seen_.workers, seen_.signs, lost.suspects, redis_answers=redis_answers)
        return seen_, lost, models, found

    async def _overview(self) -> Overview:
        return await overview.read(self._db, self._retention_seconds, self._models)

    async def _redis_answers(self) -> bool:
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                await self._pubsub.ping()
        except (TimeoutError, PubSubUnavailable):
            return False
        return True

    async def workers(self) -> Sequence[SeenWorker]:
        rows, paces = await worker_rows.read(self._db)
        return seen(rows, paces)

    async def queue(self, by: By, limit: int) -> tuple[Sequence[BacklogEntry], bool]:
        """What has not ended, those with most of it first, and whether there are more than `limit`."""
        parts = await backlog.read(self._db, by)
        every = added_up(parts, by, self._models)
        entries = every[:limit]
        ids = [entry.id for entry in entries if entry.id is not None]
        find = {"project": backlog.project_names, "key": backlog.key_names}.get(by)
        names = {} if find is None else await find(self._db, ids)
        for entry in entries:
            entry.name = entry.id if find is None else names.get(entry.id or "")
        return entries, len(every) > limit

    async def why(self, response_id: str) -> tuple[ResponseFacts, Explanation]:
        """Raises NotFound."""
        response = await response_facts.find(self._db, response_id) if may_exist(response_id) else None
        if response is None:
            raise NotFound(f"There is no response with the id '{shortened(response_id)}'.", "response_id")
        around = (
            None if response.finished_seconds is not None else await response_facts.surroundings(self._db, response)
        )
        return response, explain(response, around)
