"""`/v1/organization/projects/{id}/rate_limits`: limits on a minute, of each model and of all together."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.access.administration import Administration
from app.access.limits import LIMIT_FIELDS, limit_id
from app.api import admin_schemas as schemas
from app.api.body import read_body_as
from app.api.dependencies import Runtime, RuntimeOf, only_query
from app.api.errors import reply
from app.api.params import list_page
from app.api.route_docs import BEFORE, CURSOR_PARAMETERS, body_of, error_answers
from app.api.routes.organization.common import PROJECTS, AdministrationOf, known_ids
from app.protocol.errors import NotFound
from app.protocol.limits import ALL_MODELS, LimitKind
from app.protocol.requests.bodies.organization import NO_LIMIT, SetRateLimit
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.paging import page_object, unknown_cursor
from app.store.paging import Page

router = APIRouter(
    prefix=f"{PROJECTS}/{{project_id}}/rate_limits", tags=["organization"], dependencies=[Depends(known_ids)]
)

DEFAULT_LIMIT = 100


@router.get(
    "",
    summary="List a project's limits on a minute",
    responses={200: {"model": schemas.RateLimitList}, **error_answers(400, 404, 503)},
    openapi_extra={"parameters": [*CURSOR_PARAMETERS, BEFORE]},
    response_model=None,
    dependencies=[Depends(only_query("after", "before", "limit"))],
)
async def list_limits(project_id: str, request: Request, runtime: RuntimeOf, to: AdministrationOf) -> Response:
    page = list_page(request.query_params, default=DEFAULT_LIMIT, any_id=True)
    await to.project(project_id)
    return reply(_page(await _limits(project_id, runtime, to), page))


@router.post(
    "/{rate_limit_id:path}",
    summary="Set a project's limits on a minute",
    responses={200: {"model": schemas.RateLimit}, **error_answers(400, 404, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(SetRateLimit)},
    response_model=None,
    dependencies=[Depends(only_query())],
)
async def set_limits(
    project_id: str, rate_limit_id: str, request: Request, runtime: RuntimeOf, to: AdministrationOf
) -> Response:
    sent = await read_body_as(SetRateLimit, request, runtime.settings)
    await to.project(project_id)
    model = next((name for name in _models(runtime) if limit_id(name) == rate_limit_id), None)
    if model is None:
        raise NotFound(f"There is no rate limit '{shortened(rate_limit_id)}' in this project.", "rate_limit_id")
    values = {
        kind: None if value == NO_LIMIT else value
        for kind, field in LIMIT_FIELDS.items()
        if (value := getattr(sent, field)) is not None
    }
    if values:
        await to.set_limits(project_id, model, values)
    changed = await _limits(project_id, runtime, to)
    return reply(next(limit for limit in changed if limit["id"] == rate_limit_id))


def _models(runtime: Runtime) -> list[str]:
    return [ALL_MODELS, *(model.name for model in runtime.catalog.served)]


async def _limits(project_id: str, runtime: Runtime, to: Administration) -> list[Json]:
    values = {(row.model, row.kind): row.value for row in await to.list_limits(project_id)}
    return [_object(model, values) for model in _models(runtime)]


def _object(model: str, values: dict[tuple[str, LimitKind], int]) -> Json:
    """What has no limit has the largest number."""
    limits = {field: values.get((model, kind), NO_LIMIT) for kind, field in LIMIT_FIELDS.items()}
    return {"id": limit_id(model), "object": "project.rate_limit", "model": model, **limits}


def _page(limits: list[Json], page: Page) -> Json:
    """Raises InvalidRequest if the cursor names no entry."""
    ids = [limit["id"] for limit in limits]
    for name, cursor in (("after", page.after), ("before", page.before)):
        if cursor is not None and cursor not in ids:
            raise unknown_cursor(cursor, name)
    if page.before is not None:
        rest = limits[: ids.index(page.before)]
        shown = rest[-page.limit :]
    else:
        rest = limits if page.after is None else limits[ids.index(page.after) + 1 :]
        shown = rest[: page.limit]
    return page_object(shown, has_more=len(rest) > page.limit)
