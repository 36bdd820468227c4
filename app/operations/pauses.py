"""Pausing a model, or one project in it: its responses are accepted, and stay in line until they are resumed.

`catalog` has all models of the models file. Functions raise NothingThere, AdministrationError and StoreUnavailable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.access.changes import AdministrationError, AuditType, Change, Changes, NothingThere
from app.operations.whom import project_of
from app.operations.words import some_of
from app.store.queue import pauses, workers
from app.store.queue.pauses import PauseRow
from app.store.tenants import projects
from config.models import ModelCatalog


@dataclass(frozen=True, slots=True)
class Resumed:
    """The pauses that a resumption leaves."""

    queue: str
    paused: Sequence[PauseRow]
    """The pauses of this model that are left."""


async def pause(
    changes: Changes, catalog: ModelCatalog, model: str, project: str | None = None, reason: str | None = None
) -> PauseRow:
    """Sends nothing of the model, or of the project in it, to workers any more; what has begun goes on.

    Changes nothing if it is paused already.
    """
    project = await _project_id(changes, project)
    async with changes.begin() as change:
        queue = await _queue(change, catalog, model)
        if project is not None and await projects.lock(change.connection, project) is None:
            raise NothingThere(f"there is no project '{project}'", "project")
        by = change.operator.key_id
        if await pauses.pause(change.connection, queue, project, model, reason, by):
            await change.note(AuditType.MODEL_PAUSED, model, project, {"reason": reason})
        rows = await pauses.read(change.connection)
    return next(row for row in rows if (row.queue, row.project) == (queue, project))


async def resume(
    changes: Changes, catalog: ModelCatalog, model: str, project: str | None = None, reason: str | None = None
) -> Resumed:
    """Ends the pause of the model, or that of the project in it: each is resumed as it was paused.

    Changes nothing if there is no such pause.
    """
    project = await _project_id(changes, project)
    async with changes.begin() as change:
        queue = await _queue(change, catalog, model)
        if await pauses.resume(change.connection, queue, project):
            await change.note(AuditType.MODEL_RESUMED, model, project, {"reason": reason})
        rows = await pauses.read(change.connection)
    return Resumed(queue, [row for row in rows if row.queue == queue])


async def _project_id(changes: Changes, named: str | None) -> str | None:
    return None if named is None else await project_of(changes.db, named)


async def _queue(change: Change, catalog: ModelCatalog, model: str) -> str:
    """The queue of a model of the models file, of a worker, or that is paused: it may have left the file since."""
    served = catalog.get(model)
    if served is not None and served.base is not None:
        message = f"'{model}' is an adapter, which has the workers of '{served.base}': name that"
        raise AdministrationError(message, "model")
    queues = {each.model: each.queue for each in await pauses.read(change.connection)}
    queues |= await workers.queues(change.connection)
    queues |= {each.name: each.queue for each in catalog.models}
    if model not in queues:
        raise NothingThere(f"there is no model '{model}'; the models are: {some_of(sorted(queues))}", "model")
    return queues[model]
