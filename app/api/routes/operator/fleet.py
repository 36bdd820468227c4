"""`/v1/operator/workers`."""

from __future__ import annotations

from app.api.operator_objects import Entries, Worker
from app.api.routes.operator.common import ServiceOf, operator_router

router = operator_router()


@router.get("/workers", summary="List the workers, and what each runs")
async def list_workers(service: ServiceOf) -> Entries[Worker]:
    return Entries(data=[Worker.of(worker) for worker in await service.workers()])
