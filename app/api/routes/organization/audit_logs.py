"""`/v1/organization/audit_logs`: what operators did."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Depends, Request
from starlette.datastructures import QueryParams
from starlette.responses import Response

from app.access.objects import COMMAND_LINE, audit_object
from app.api import admin_schemas as schemas
from app.api.dependencies import RuntimeOf, only_query
from app.api.params import boolean, integer, list_page, repeatable, values_of
from app.api.route_docs import AUDIT_PARAMETERS, CURSOR_PARAMETERS, error_answers
from app.api.routes.organization.common import list_reply
from app.protocol.errors import InvalidRequest
from app.store.tenants import audit
from app.store.tenants.audit import AuditFilter

router = APIRouter(prefix="/v1/organization/audit_logs", tags=["organization"])

_FILTERS = repeatable("event_types", "actor_ids", "actor_emails", "project_ids", "resource_ids")
_BOUNDS = ("gt", "gte", "lt", "lte")
_MAX_TIME = 253_402_300_798
"""The end of the year 9999, the last that Python's dates have."""


@router.get(
    "",
    summary="List what operators did, the newest first",
    responses={200: {"model": schemas.AuditLogList}, **error_answers(400, 414, 503)},
    openapi_extra={"parameters": [*CURSOR_PARAMETERS, *AUDIT_PARAMETERS]},
    response_model=None,
    dependencies=[
        Depends(
            only_query(
                "after",
                "before",
                "limit",
                "tenant_only",
                *(f"effective_at[{bound}]" for bound in _BOUNDS),
                *_FILTERS,
                repeated=_FILTERS,
            )
        )
    ],
)
async def list_entries(request: Request, runtime: RuntimeOf) -> Response:
    query = request.query_params
    page = list_page(query, descending=True)
    return list_reply(await audit.find_page(runtime.db, _filter(query), page), page, audit_object)


def _filter(query: QueryParams) -> AuditFilter:
    """Raises InvalidRequest."""
    if values_of(query, "actor_emails"):
        message = "'actor_emails' is not supported: nobody has an email address here. Use 'actor_ids'."
        raise InvalidRequest(message, "actor_emails", "unsupported_parameter")
    if boolean(query, "tenant_only"):
        raise InvalidRequest(
            "'tenant_only' is not supported yet (only false is).", "tenant_only", "unsupported_parameter"
        )
    actors = values_of(query, "actor_ids")
    return AuditFilter(
        types=values_of(query, "event_types"),
        actors=tuple(actor for actor in actors if actor != COMMAND_LINE),
        from_command_line=COMMAND_LINE in actors,
        projects=values_of(query, "project_ids"),
        resources=values_of(query, "resource_ids"),
        since=_moment(max(_times(query, gte=0, gt=1), default=None)),
        until=_moment(min(_times(query, lt=0, lte=1), default=None)),
    )


def _times(query: QueryParams, **later: int) -> list[int]:
    """The bounds of these names. An entry's time is shown without its fraction, so some count a second later."""
    sent = {bound: integer(query, f"effective_at[{bound}]", 0, _MAX_TIME) for bound in later}
    return [seconds + later[bound] for bound, seconds in sent.items() if seconds is not None]


def _moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
