"""`/v1/operator/workers/{name}/drain` and `/undrain`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from app.api.dependencies import ChangesOf, RuntimeOf
from app.api.routes.operator.common import ServiceOf, operator_router
from app.api.routes.operator.objects import Worker
from app.api.routes.route import Body
from app.operations import drains
from app.operations.service import OperatorService
from app.protocol.errors import NotFound
from app.protocol.requests.bodies.fleet import ChangeWorker

router = operator_router("/workers")

_Sent = Annotated[ChangeWorker, Depends(Body(ChangeWorker, may_be_empty=True).read)]


@router.post(
    "/{name}/drain",
    summary="Drain a worker",
    description="It is sent nothing more. What it runs goes on to its end; then its state is `drained`.",
)
async def drain_worker(name: str, sent: _Sent, changes: ChangesOf, service: ServiceOf, runtime: RuntimeOf) -> Worker:
    worker = await drains.drain(changes, name, sent.reason)
    runtime.responses.nudge(worker.queue)
    return await _shown(service, name)


@router.post("/{name}/undrain", summary="Give a worker responses again")
async def undrain_worker(name: str, sent: _Sent, changes: ChangesOf, service: ServiceOf, runtime: RuntimeOf) -> Worker:
    worker = await drains.undrain(changes, name, sent.reason)
    runtime.responses.nudge(worker.queue)
    return await _shown(service, name)


async def _shown(service: OperatorService, name: str) -> Worker:
    snapshot = await service.snapshot()
    for worker in snapshot.workers:
        if worker.name == name:
            return Worker.of_one(snapshot, worker)
    raise NotFound(f"The worker '{name}' has gone; the change holds if it comes back.", "name")
