"""`/health`: probes for load balancers and monitoring."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.access.caller import STRANGER
from app.api import readiness
from app.api.dependencies import CallerOf, RuntimeOf
from app.api.docs import schemas
from app.api.errors import OK, SERVICE_UNAVAILABLE, reply
from app.api.readiness import status_text

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
async def ready(runtime: RuntimeOf, caller: CallerOf) -> Response:
    """Without an API key, where one is asked for, the answer has the status alone."""
    if caller is STRANGER:
        is_ready = await runtime.readiness.get()
        return reply({"status": status_text(is_ready)}, OK if is_ready else SERVICE_UNAVAILABLE)
    found = await readiness.check(runtime.db, runtime.pubsub, runtime.catalog)
    return reply(found.body(), OK if found.ready else SERVICE_UNAVAILABLE)
