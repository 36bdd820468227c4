"""The operators' service: what they see of all projects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.operations.conditions import (
    CONDITIONS,
    SCHEMA_CONDITION,
    Condition,
    Facts,
    Grade,
    Names,
    holding,
    in_both,
    is_brief,
)
from app.operations.explanation import Explanation, explain
from app.operations.models import Backlog, ModelTotals, backlog, model_totals
from app.responses.read.reader import no_such_response
from app.store import migrate
from app.store.database import Database
from app.store.operations import known, snapshot
from app.store.operations.known import KnownResponse
from app.store.operations.snapshot import Snapshot
from app.store.tenants import api_keys, projects
from app.streaming.pubsub import PubSub, PubSubUnavailable
from config.version import VERSION

REDIS_SECONDS = 1.0
"""How long Redis may take to answer."""
SECOND_LOOK_SECONDS = 1.5
"""Three rounds of maintenance: what is only brief has passed."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The whole deployment, with the conditions that hold."""

    version: str
    snapshot: Snapshot
    models: Sequence[ModelTotals]
    names: Names
    conditions: Sequence[Condition]

    def of_grade(self, grade: Grade) -> list[Condition]:
        return [each for each in self.conditions if CONDITIONS[each.code].grade is grade]

    @property
    def grade(self) -> Grade:
        if self.of_grade(Grade.WRONG):
            return Grade.WRONG
        return Grade.ATTENTION if self.conditions else Grade.FINE


class OperatorService:
    """The operators' views. Facts come from Postgres alone: every method raises StoreUnavailable."""

    def __init__(self, db: Database, pubsub: PubSub, models: Mapping[str, str], retention_seconds: float) -> None:
        """`models` are those of the models file, by queue; logs are kept for `retention_seconds`."""
        self._db = db
        self._pubsub = pubsub
        self._models = models
        self._retention_seconds = retention_seconds

    async def snapshot(self, *, by_key: bool = False) -> Snapshot:
        return await snapshot.read(self._db, self._retention_seconds, by_key=by_key)

    async def status(self) -> Deployment:
        """If something is wrong that may be so only for a moment, it looks a second time."""
        if not await migrate.is_supported(self._db):
            return Deployment(VERSION, Snapshot(), (), Names(), [SCHEMA_CONDITION])
        facts = await self._facts()
        found = holding(facts)
        if any(map(is_brief, found)):
            await asyncio.sleep(SECOND_LOOK_SECONDS)
            facts = await self._facts()
            found = in_both(found, holding(facts))
        return Deployment(VERSION, facts.snapshot, facts.models, facts.names, found)

    async def _facts(self) -> Facts:
        look, redis_answers = await asyncio.gather(self.snapshot(), self._redis_answers())
        told = {each.project for each in look.pauses if each.project} | {each.project for each in look.limits}
        actors = {each.actor for each in look.pauses if each.actor is not None}
        names = Names(await projects.names(self._db, told), await api_keys.names(self._db, actors))
        return Facts(look, model_totals(look, self._models), names, redis_answers)

    async def _redis_answers(self) -> bool:
        try:
            async with asyncio.timeout(REDIS_SECONDS):
                await self._pubsub.ping()
        except (TimeoutError, PubSubUnavailable):
            return False
        return True

    async def queue(self, by: str, limit: int) -> tuple[Sequence[Backlog], bool]:
        """Entries of unfinished responses, the largest first, and whether there are more than `limit`."""
        every = backlog(await self.snapshot(by_key=by == "key"), by, self._models)
        entries = every[:limit]
        ids = {entry.id for entry in entries if entry.id is not None}
        find = {"project": projects.names, "key": api_keys.names}.get(by)
        names = {} if find is None else await find(self._db, ids)
        for entry in entries:
            entry.name = entry.id if find is None else names.get(entry.id or "")
        return entries, len(every) > limit

    async def why(self, response_id: str) -> tuple[KnownResponse, Explanation]:
        """Raises NotFound."""
        response = await known.find(self._db, response_id)
        if response is None:
            raise no_such_response(response_id)
        if response.finished_at is not None:
            return response, explain(response, Snapshot())
        calls = await known.read_calls(self._db, response) if response.worker is not None else ()
        waits_for = [each.tool or each.type for each in calls if each.status == "in_progress"]
        return response, explain(response, await self.snapshot(), waits_for)
