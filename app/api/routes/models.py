"""`/v1/models`: the models that this server serves, and what each can do."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from app.api.dependencies import CallerOf, RuntimeOf
from app.api.docs import schemas
from app.api.errors import reply
from app.api.queries import Query
from app.api.routes.route import Asked, Route
from app.responses.models.cards import card_of
from app.responses.models.catalog import served_model
from app.responses.models.codex import codex_model

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=Route)


class ModelsQuery(Query):
    client_version: str | None = Field(
        None, description="Codex sends it: the list has `models`, too, as Codex reads them."
    )


@router.get("", summary="List the served models", response_model=schemas.ModelList)
async def list_models(query: Asked[ModelsQuery], runtime: RuntimeOf, caller: CallerOf) -> Response:
    """With `client_version`, which Codex sends, the list has the models as Codex reads them, too."""
    catalog = await runtime.catalogs.of(caller.project)
    cards = [card_of(await runtime.registered.complete(model), catalog.tools) for model in catalog.served]
    answer = {"object": "list", "data": [card.as_object(runtime.started_at) for card in cards]}
    if query.client_version is not None:
        answer["models"] = [codex_model(card, position) for position, card in enumerate(cards)]
    return reply(answer)


@router.get("/{model:path}", summary="One served model", response_model=schemas.Model)
async def get_model(model: str, runtime: RuntimeOf, caller: CallerOf) -> Response:
    catalog = await runtime.catalogs.of(caller.project)
    served = await runtime.registered.complete(served_model(catalog, model))
    return reply(card_of(served, catalog.tools).as_object(runtime.started_at))
