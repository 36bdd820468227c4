"""`/v1/operator/status`, `/queue` and `/workers`: the whole deployment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.api.queries import DIGITS, Query
from app.api.routes.operator.common import ServiceOf, operator_router
from app.api.routes.operator.objects import Backlog, Entries, Overview, Worker
from app.api.routes.route import Asked

MAX_ENTRIES = 10_000
"""There are no more projects."""

router = operator_router()


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
