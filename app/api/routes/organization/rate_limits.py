"""`/v1/organization/projects/{id}/rate_limits`: limits on a minute, of each model and of all together."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from app.access.project_limits import LIMIT_FIELDS, limit_id
from app.api.admin_objects import List, RateLimit
from app.api.dependencies import Runtime, RuntimeOf
from app.api.errors import encoded_reply
from app.api.queries import DIGITS, BothWaysQuery
from app.api.routes.organization.common import AdministrationOf, organization_router
from app.api.routes.route import Asked, Sent
from app.protocol.errors import NotFound
from app.protocol.limits import ALL_MODELS
from app.protocol.requests.bodies.organization import NO_LIMIT, SetRateLimit
from app.protocol.text import shortened
from app.responses.paging import MAX_LIMIT, page_of
from app.store.tenants import limits

router = organization_router("projects/{project_id}/rate_limits")


class LimitsQuery(BothWaysQuery):
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT), DIGITS] = Field(MAX_LIMIT, description="How many entries.")


@router.get("", summary="List a project's limits on a minute", response_model=List[RateLimit])
async def list_limits(project_id: str, query: Asked[LimitsQuery], runtime: RuntimeOf, to: AdministrationOf) -> Response:
    await to.project(project_id)
    return encoded_reply(page_of([limit.model_dump() for limit in await _limits(project_id, runtime)], query.page))


@router.post("/{rate_limit_id:path}", summary="Set a project's limits on a minute")
async def set_limits(
    project_id: str, rate_limit_id: str, sent: Sent[SetRateLimit], runtime: RuntimeOf, to: AdministrationOf
) -> RateLimit:
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
    changed = await _limits(project_id, runtime)
    return next(limit for limit in changed if limit.id == rate_limit_id)


def _models(runtime: Runtime) -> list[str]:
    return [ALL_MODELS, *(model.name for model in runtime.catalogs.whole.served)]


async def _limits(project_id: str, runtime: Runtime) -> list[RateLimit]:
    values = {(row.model, row.kind): row.value for row in await limits.find(runtime.db, project_id)}
    return [RateLimit.of(model, values) for model in _models(runtime)]
