"""`/v1/organization/projects/{id}/api_keys`: all keys of a project, without the keys themselves."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.access.objects import key_object
from app.access.service_accounts import ServiceAccounts
from app.api import admin_schemas as schemas
from app.api.body import read_body_as
from app.api.dependencies import RuntimeOf, only_query
from app.api.errors import reply
from app.api.params import list_page, one_of
from app.api.route_docs import CURSOR_PARAMETERS, PROJECT_ACCESS, body_of, error_answers
from app.api.routes.organization.common import (
    PROJECTS,
    AccountsOf,
    AdministrationOf,
    deleted,
    known_ids,
    list_reply,
)
from app.api.routes.organization.scopes import scopes_of
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.organization import UpdateKey
from app.store.tenants.api_keys import KeyRow

router = APIRouter(
    prefix=f"{PROJECTS}/{{project_id}}/api_keys", tags=["organization"], dependencies=[Depends(known_ids)]
)

_no_query = Depends(only_query())
_ACCESS = "owner_project_access"


@router.get(
    "",
    summary="List the keys of a project",
    responses={200: {"model": schemas.ProjectKeyList}, **error_answers(400, 404, 503)},
    openapi_extra={"parameters": [*CURSOR_PARAMETERS, PROJECT_ACCESS]},
    response_model=None,
    dependencies=[Depends(only_query("after", "limit", _ACCESS))],
)
async def list_keys(project_id: str, request: Request, to: AdministrationOf, accounts: AccountsOf) -> Response:
    page, access = list_page(request.query_params), one_of(request.query_params, _ACCESS, ("any", "active", "inactive"))
    project = await to.project(project_id)
    found = await to.page_of_keys(project_id, page)
    if found is not None and access == ("active" if project.archived_at else "inactive"):
        found = [], False  # All keys of a project have the same access.
    rows = [] if found is None else found[0]
    owners = await accounts.owners({key.service_account for key in rows if key.service_account is not None})
    return list_reply(found, page, lambda key: key_object(key, owners))


@router.get(
    "/{key_id}",
    summary="Read a key of a project",
    responses={200: {"model": schemas.ProjectKey}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[_no_query],
)
async def get_key(project_id: str, key_id: str, to: AdministrationOf, accounts: AccountsOf) -> Response:
    return await _key_reply(await to.key(project_id, key_id), accounts)


@router.post(
    "/{key_id}",
    summary="Change what a key allows, and when it expires",
    responses={200: {"model": schemas.ProjectKey}, **error_answers(400, 404, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(UpdateKey)},
    response_model=None,
    dependencies=[_no_query],
)
async def update_key(
    project_id: str,
    key_id: str,
    request: Request,
    runtime: RuntimeOf,
    to: AdministrationOf,
    accounts: AccountsOf,
) -> Response:
    sent = await read_body_as(UpdateKey, request, runtime.settings)
    if not sent.model_fields_set:
        message = "There is nothing to change: send 'scopes', 'expires_in_seconds' or both."
        raise InvalidRequest(message, None, "missing_required_parameter")
    scopes = scopes_of(sent.scopes) if "scopes" in sent.model_fields_set else None
    return await _key_reply(await to.change_key(project_id, key_id, scopes, sent.expires_in_seconds or None), accounts)


@router.delete(
    "/{key_id}",
    summary="End a key of a project",
    responses={200: {"model": schemas.ProjectKeyDeleted}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[_no_query],
)
async def delete_key(project_id: str, key_id: str, to: AdministrationOf) -> Response:
    await to.key(project_id, key_id)
    await to.revoke_key(key_id)
    return deleted(key_id, "organization.project.api_key")


async def _key_reply(key: KeyRow, accounts: ServiceAccounts) -> Response:
    owners = await accounts.owners([] if key.service_account is None else [key.service_account])
    return reply(key_object(key, owners))
