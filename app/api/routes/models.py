"""`/v1/models`: the models that this server serves, and what each can do."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from app.api.dependencies import CallerOf, RuntimeOf
from app.api.docs import schemas
from app.api.errors import reply, speaks_messages
from app.api.queries import DIGITS, Query
from app.api.routes.route import Asked, Route
from app.messages.models import model_info, model_list
from app.responses.models.cards import card_of
from app.responses.models.catalog import served_model
from app.responses.models.codex import codex_model

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=Route)


class ModelsQuery(Query):
    client_version: str | None = Field(
        None, description="Codex sends it: the list has `models`, too, as Codex reads them."
    )
    limit: Annotated[int, Field(ge=1, le=1000), DIGITS] | None = Field(
        None, description="Anthropic's clients send it. The list is always whole."
    )
    beta: Literal["true", "false"] | None = Field(None, description="As `limit`: it changes nothing.")


@router.get("", summary="List the served models", response_model=schemas.ModelList)
async def list_models(request: Request, query: Asked[ModelsQuery], runtime: RuntimeOf, caller: CallerOf) -> Response:
    """With `client_version`, which Codex sends, the list has the models as Codex reads them, too.

    With the header `anthropic-version`, it is the list of Anthropic's API.
    """
    catalog = await runtime.catalogs.of(caller.project)
    completed = [await runtime.registered.complete(model) for model in catalog.served]
    if speaks_messages(request.scope):
        return reply(model_list([model_info(model.name, model.context_length) for model in completed]))
    cards = [card_of(model, catalog.tools) for model in completed]
    answer = {"object": "list", "data": [card.as_object(runtime.started_at) for card in cards]}
    if query.client_version is not None:
        answer["models"] = [codex_model(card, position) for position, card in enumerate(cards)]
    return reply(answer)


@router.get("/{model:path}", summary="One served model", response_model=schemas.Model)
async def get_model(request: Request, model: str, runtime: RuntimeOf, caller: CallerOf) -> Response:
    catalog = await runtime.catalogs.of(caller.project)
    served = await runtime.registered.complete(served_model(catalog, model))
    if speaks_messages(request.scope):
        return reply(model_info(served.name, served.context_length))
    return reply(card_of(served, catalog.tools).as_object(runtime.started_at))
