"""`/v1/organization/admin_api_keys`: the keys of the operators."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.access.caller import OPERATOR_SCOPES
from app.access.objects import admin_key_object
from app.api import admin_schemas as schemas
from app.api.body import read_body_as
from app.api.dependencies import CallerOf, RuntimeOf, only_query
from app.api.errors import reply
from app.api.params import list_page
from app.api.route_docs import CURSOR_PARAMETERS, ORDER, body_of, error_answers
from app.api.routes.organization.common import AdministrationOf, deleted, known_ids, list_reply
from app.protocol.requests.bodies.organization import CreateAdminKey

router = APIRouter(prefix="/v1/organization/admin_api_keys", tags=["organization"], dependencies=[Depends(known_ids)])

_no_query = Depends(only_query())


@router.post(
    "",
    summary="Create an admin key",
    description="It allows what the caller's key allows. The answer is the only one that has the key.",
    responses={200: {"model": schemas.NewAdminKey}, **error_answers(400, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(CreateAdminKey)},
    response_model=None,
    dependencies=[_no_query],
)
async def create_key(request: Request, runtime: RuntimeOf, caller: CallerOf, to: AdministrationOf) -> Response:
    sent = await read_body_as(CreateAdminKey, request, runtime.settings)
    made = await to.create_key(None, sent.name, caller.scopes & OPERATOR_SCOPES, sent.expires_in_seconds or None)
    return reply({**admin_key_object(made.row), "value": made.secret})


@router.get(
    "",
    summary="List the admin keys",
    responses={200: {"model": schemas.AdminKeyList}, **error_answers(400, 503)},
    openapi_extra={"parameters": [*CURSOR_PARAMETERS, ORDER]},
    response_model=None,
    dependencies=[Depends(only_query("after", "limit", "order"))],
)
async def list_keys(request: Request, to: AdministrationOf) -> Response:
    page = list_page(request.query_params)
    return list_reply(await to.page_of_keys(None, page), page, admin_key_object)


@router.get(
    "/{key_id}",
    summary="Read an admin key",
    responses={200: {"model": schemas.AdminKey}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[_no_query],
)
async def get_key(key_id: str, to: AdministrationOf) -> Response:
    return reply(admin_key_object(await to.key(None, key_id)))


@router.delete(
    "/{key_id}",
    summary="End an admin key",
    responses={200: {"model": schemas.AdminKeyDeleted}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[_no_query],
)
async def delete_key(key_id: str, to: AdministrationOf) -> Response:
    await to.key(None, key_id)
    await to.revoke_key(key_id)
    return deleted(key_id, "organization.admin_api_key")
