"""`/v1/models`: the models that this server serves, and what each can do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.responses import Response

from app.api.dependencies import CallerOf, Runtime, RuntimeOf
from app.api.docs import schemas
from app.api.docs.routes import error_answers
from app.api.errors import reply
from app.api.queries import NO_QUERY, Query
from app.responses.models.cards import card_of
from app.responses.models.catalog import served_model
from app.responses.models.codex import codex_model
from app.store.database import StoreUnavailable
from app.store.queue import workers

router = APIRouter(prefix="/v1/models", tags=["models"])

WAIT_SECONDS = 1.0
"""How long a list waits for Postgres, for the context lengths that models.toml does not have."""


class ModelsQuery(Query):
    client_version: str | None = Field(
        None, description="Codex sends it: the list has `models`, too, as Codex reads them."
    )


async def _lengths(runtime: Runtime) -> Mapping[str, int]:
    """Returns the context lengths that workers have registered, by model. While Postgres is away there are none."""
    if all(model.context_length is not None for model in runtime.catalog.models):
        return {}
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await workers.context_lengths(runtime.db)
    except (TimeoutError, StoreUnavailable):
        return {}


@router.get(
    "",
    summary="List the served models",
    responses={200: {"model": schemas.ModelList}, **error_answers(400)},
    openapi_extra={"parameters": ModelsQuery.parameters()},
    response_model=None,
)
async def list_models(
    query: Annotated[ModelsQuery, Depends(ModelsQuery.read)], runtime: RuntimeOf, caller: CallerOf
) -> Response:
    """With `client_version`, which Codex sends, the list has the models as Codex reads them, too."""
    catalog, lengths = await runtime.catalogs.of(caller.project), await _lengths(runtime)
    cards = [card_of(model, catalog.tools, lengths) for model in catalog.served]
    answer = {"object": "list", "data": [card.as_object(runtime.started_at) for card in cards]}
    if query.client_version is not None:
        answer["models"] = [codex_model(card, position) for position, card in enumerate(cards)]
    return reply(answer)


@router.get(
    "/{model:path}",
    summary="One served model",
    responses={200: {"model": schemas.Model}, **error_answers(400, 404)},
    response_model=None,
    dependencies=[NO_QUERY],
)
async def get_model(model: str, runtime: RuntimeOf, caller: CallerOf) -> Response:
    catalog = await runtime.catalogs.of(caller.project)
    served = served_model(catalog, model)
    return reply(card_of(served, catalog.tools, await _lengths(runtime)).as_object(runtime.started_at))
