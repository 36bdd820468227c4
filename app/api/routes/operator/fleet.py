"""`/v1/operator/status`, `/queue` and `/workers`: the whole deployment, and draining a worker of it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends
from pydantic import Field

from app.api.dependencies import ChangesOf, RuntimeOf
from app.api.queries import DIGITS, Query
from app.api.routes.operator.common import ServiceOf, operator_router
from app.api.routes.operator.objects import Backlog, Entries, Overview, Worker
from app.api.routes.route import Asked, Body
from app.operations import drains
from app.operations.service import OperatorService
from app.protocol.errors import NotFound
from app.protocol.requests.bodies.operator import ChangeWorker

MAX_ENTRIES = 10_000
"""There are no more projects."""

router = operator_router()
workers = operator_router("/workers")

_Change = Annotated[ChangeWorker, Depends(Body(ChangeWorker, may_be_empty=True).read)]


class QueueQuery(Query):
    by: Literal["model", "project", "key"] = Field("model", description="Whose responses are counted together.")
    limit: Annotated[int, Field(ge=1, le=MAX_ENTRIES), DIGITS] = Field(
        100, description="How many entries, those with most responses first."
    )


@router.get(
    "/status",
    summary="What is wrong, and what each model has",
    description="Takes two seconds longer where it finds what may be so only for a moment: then it looks again.",
)
async def get_status(service: ServiceOf) -> Overview:
    return Overview.of(await service.status())


@router.get("/queue", summary="Count what has not ended, by model, project or key")
async def count_queue(query: Asked[QueueQuery], service: ServiceOf) -> Entries[Backlog]:
    entries, has_more = await service.queue(query.by, query.limit)
    return Entries(data=[Backlog.of(entry) for entry in entries], has_more=has_more)


@router.get("/workers", summary="List the workers, and what each runs")
async def list_workers(service: ServiceOf) -> Entries[Worker]:
    return Entries(data=Worker.all_of(await service.snapshot()))


@workers.post(
    "/{name}/drain",
    summary="Drain a worker",
    description="It is sent nothing more. What it runs goes on to its end; then its state is `drained`.",
)
async def drain_worker(name: str, sent: _Change, changes: ChangesOf, service: ServiceOf, runtime: RuntimeOf) -> Worker:
    worker = await drains.drain(changes, name, sent.reason)
    runtime.responses.nudge(worker.queue)
    return await _shown(service, name)


@workers.post("/{name}/undrain", summary="Give a worker responses again")
async def undrain_worker(
    name: str, sent: _Change, changes: ChangesOf, service: ServiceOf, runtime: RuntimeOf
) -> Worker:
    worker = await drains.undrain(changes, name, sent.reason)
    runtime.responses.nudge(worker.queue)
    return await _shown(service, name)


async def _shown(service: OperatorService, name: str) -> Worker:
    snapshot = await service.snapshot()
    for worker in snapshot.workers:
        if worker.name == name:
            return Worker.of_one(snapshot, worker)
    raise NotFound(f"The worker '{name}' has gone; the change holds if it comes back.", "name")
