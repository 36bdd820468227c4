"""`/v1/operator/pauses`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from app.api.dependencies import ChangesOf, RuntimeOf
from app.api.docs.routes import error_answers
from app.api.queries import Query
from app.api.routes.operator.common import operator_router
from app.api.routes.operator.objects import Entries, Pause
from app.api.routes.route import Asked, Sent
from app.operations import pauses
from app.protocol.requests.bodies.operator import PauseModel, Reason
from app.store.queue.pauses import PauseRow, read

router = operator_router("/pauses")


class ResumeQuery(Query):
    model: str = Field(description="The model that is resumed.")
    project: str | None = Field(None, description="Of a project that was paused alone; left out, of all.")
    reason: Reason | None = Field(None, description="For the audit log.")


@router.post(
    "",
    summary="Pause a model, or one project in it",
    description="Requests in the background are accepted and wait in line, requests in the foreground are refused (503,"
    " `model_paused`). What has begun goes on. Queue timeouts go on running.",
    responses=error_answers(404),
)
async def pause(sent: Sent[PauseModel], changes: ChangesOf, runtime: RuntimeOf) -> Pause:
    return Pause.of(await pauses.pause(changes, runtime.catalogs.whole, sent.model, sent.project, sent.reason))


@router.get("", summary="List what is paused")
async def list_pauses(runtime: RuntimeOf) -> Entries[Pause]:
    return _entries(await read(runtime.db))


@router.delete(
    "",
    summary="Resume a model, or a project in it",
    description="Answers with what is left of its pauses.",
    responses=error_answers(404),
)
async def resume(query: Asked[ResumeQuery], changes: ChangesOf, runtime: RuntimeOf) -> Entries[Pause]:
    resumed = await pauses.resume(changes, runtime.catalogs.whole, query.model, query.project, query.reason)
    runtime.responses.nudge(resumed.queue)
    return _entries(resumed.paused)


def _entries(rows: Sequence[PauseRow]) -> Entries[Pause]:
    return Entries(data=[Pause.of(row) for row in rows])
