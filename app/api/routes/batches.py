"""`/v1/batches`: a file of requests in, a file of results out."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app.api.dependencies import CallerOf, HoldOf, Project, RuntimeOf, idempotency_key
from app.api.docs import schemas
from app.api.docs.routes import CREATE_PARAMETERS, RESULTS
from app.api.errors import encoded_reply, reply
from app.api.foreground import LongPoll
from app.api.queries import DIGITS, NewestFirstQuery, Query, WaitQuery
from app.api.routes.route import Asked, Route, Sent
from app.api.sse import LineStream
from app.protocol.requests.bodies.batch import CreateBatch
from app.protocol.types import Json

router = APIRouter(prefix="/v1/batches", tags=["batches"], route_class=Route)


class ResultsQuery(Query):
    """Query of `GET /v1/batches/{batch_id}/results`."""

    after: Annotated[int, Field(ge=0, le=2**31 - 1), DIGITS] = Field(
        0, description="Results with a larger `number` alone."
    )


@router.post(
    "",
    summary="Create a batch",
    response_model=schemas.Batch,
    openapi_extra={"parameters": CREATE_PARAMETERS},
)
async def create_batch(request: Request, sent: Sent[CreateBatch], runtime: RuntimeOf, caller: CallerOf) -> Response:
    """The file's lines are checked first. If all are good, each becomes a response of the batch."""
    key = await idempotency_key(request)
    return reply(await runtime.batches.create(caller.own_project, sent, caller.key_id, key))


@router.get("", summary="List batches", response_model=schemas.BatchList)
async def list_batches(query: Asked[NewestFirstQuery], runtime: RuntimeOf, project: Project, hold: HoldOf) -> Response:
    return encoded_reply(await runtime.batches.page(project, query.page, hold))


@router.get("/{batch_id}", summary="Read a batch", response_model=schemas.Batch)
async def get_batch(batch_id: str, query: Asked[WaitQuery], runtime: RuntimeOf, project: Project) -> Response:
    """With `wait` the answer comes once the batch has ended, or after so many seconds."""

    async def answer(ended: Json | None = None) -> Response:
        return reply(ended or await runtime.batches.get(project, batch_id))

    if query.wait:
        waiting = partial(runtime.batches.until_ended, project, batch_id, query.wait)
        return LongPoll(waiting, answer, runtime.shutdown.begun)
    return await answer()


@router.post("/{batch_id}/cancel", summary="Cancel a batch", response_model=schemas.Batch)
async def cancel_batch(batch_id: str, runtime: RuntimeOf, project: Project) -> Response:
    """What has ended is kept, and in its files."""
    return reply(await runtime.batches.cancel(project, batch_id))


@router.post("/{batch_id}/retry_failed", summary="Retry what has no answer", response_model=schemas.Batch, responses={})
async def retry_failed(batch_id: str, runtime: RuntimeOf, caller: CallerOf) -> Response:
    """A new batch of the lines that failed, expired or were cancelled. An extension."""
    return reply(await runtime.batches.retry_failed(caller.own_project, batch_id, caller.key_id))


@router.get("/{batch_id}/results", summary="Follow a batch's results", response_class=Response, responses=RESULTS)
async def follow_results(batch_id: str, query: Asked[ResultsQuery], runtime: RuntimeOf, project: Project) -> Response:
    """Lines of JSON, as they end, up to the end of the batch. To go on, send the last `number` as `after`."""
    opening = partial(runtime.batches.follow, project, batch_id, query.after)
    return LineStream(opening, runtime.reader.readers, project, runtime.shutdown.begun)
