"""`/health`: probes for load balancers and monitoring."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.api import readiness, schemas
from app.api.dependencies import RuntimeOf
from app.api.errors import OK, SERVICE_UNAVAILABLE, reply

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live", summary="Is this process alive?", responses={200: {"model": schemas.Live}}, response_model=None)
async def live() -> Response:
    return reply({"status": "live"})


@router.get(
    "/ready",
    summary="Can this server generate responses now?",
    responses={OK: {"model": schemas.Ready}, SERVICE_UNAVAILABLE: {"model": schemas.Ready}},
    response_model=None,
)
async def ready(runtime: RuntimeOf) -> Response:
    found = await readiness.check(runtime.db, runtime.pubsub, runtime.catalog)
    return reply(found.body(), OK if found.ready else SERVICE_UNAVAILABLE)
