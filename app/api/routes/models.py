"""`/v1/models`: the models that this server serves."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from starlette.responses import Response

from app.api import schemas
from app.api.dependencies import Runtime, RuntimeOf, only_query
from app.api.errors import reply
from app.api.route_docs import error_answers
from app.protocol.types import Json
from app.responses.models import served_model
from config.models import ServedModel

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[Depends(only_query())])


def _as_object(model: ServedModel, runtime: Runtime) -> Json:
    return {"id": model.name, "object": "model", "created": runtime.started_at, "owned_by": "longhaul"}


@router.get(
    "",
    summary="List the served models",
    responses={200: {"model": schemas.ModelList}, **error_answers(400)},
    response_model=None,
)
async def list_models(runtime: RuntimeOf) -> Response:
    models = [_as_object(model, runtime) for model in runtime.catalog.served]
    return reply({"object": "list", "data": models})


@router.get(
    "/{model:path}",
    summary="One served model",
    responses={200: {"model": schemas.Model}, **error_answers(400, 404)},
    response_model=None,
)
async def get_model(model: str, runtime: RuntimeOf) -> Response:
    return reply(_as_object(served_model(runtime.catalog, model), runtime))
