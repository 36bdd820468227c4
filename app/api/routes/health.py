"""`/health`: for whatever watches this process."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.api import readiness, schemas
from app.api.dependencies import RuntimeOf
from app.api.errors import NOT_READY, reply

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live", summary="Is this process alive?", responses={200: {"model": schemas.Live}}, response_model=None)
async def live() -> Response:
    return reply({"status": "live"})


@router.get(
    "/ready",
    summary="Can this server generate responses now?",
    responses={200: {"model": schemas.Ready}, NOT_READY: {"model": schemas.Ready}},
    response_model=None,
)
async def ready(runtime: RuntimeOf) -> Response:
    found = await readiness.check(runtime.db, runtime.pubsub, runtime.catalog)
    return reply(found.body(), 200 if found.ready else NOT_READY)
