"""`/health`: probes for load balancers and monitoring."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from app.access.caller import STRANGER
from app.api.dependencies import CallerOf, RuntimeOf
from app.api.docs import schemas
from app.api.docs.routes import error_answers
from app.api.errors import OK, SERVICE_UNAVAILABLE, reply
from app.api.queries import ReadyQuery
from app.api.routes.route import Asked
from app.protocol.errors import Unauthorized
from app.responses.models.catalog import served_model

_READY = {"model": schemas.Ready}

router = APIRouter(prefix="/health", tags=["health"])
root = APIRouter()


@root.get("/", include_in_schema=False)
async def found() -> Response:
    """Claude Code sends HEAD first, to see that there is a server."""
    return reply({"name": "longhaul"})


@router.get("/live", summary="Is this process alive?", response_model=schemas.Live)
async def live() -> Response:
    return reply({"status": "live"})


@router.get(
    "/ready",
    summary="Does this server accept work? With `model`: can that model answer now?",
    responses={OK: _READY, SERVICE_UNAVAILABLE: _READY, **error_answers(400, 401, 404)},
    openapi_extra={"parameters": ReadyQuery.parameters()},
    response_model=None,
)
async def ready(query: Asked[ReadyQuery], runtime: RuntimeOf, caller: CallerOf) -> Response:
    """A caller without an API key, where one is asked for, gets the status alone; any other, its project's models."""
    if query.model is not None and caller is STRANGER:
        raise Unauthorized("Only a caller with an API key may ask for a model.", "model")
    catalog = await runtime.catalogs.of(caller.project)
    models = catalog.served if query.model is None else (served_model(catalog, query.model),)
    found = (await runtime.readiness.get()).of(models)
    if runtime.shutdown.begun.is_set():
        return reply({"status": "stopping"}, SERVICE_UNAVAILABLE)
    is_well = found.accepts if query.model is None else found.is_whole
    body = {"status": found.status} if caller is STRANGER else found.body()
    return reply(body, OK if is_well else SERVICE_UNAVAILABLE)
