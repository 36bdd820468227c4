"""`/v1/organization/projects/{id}/service_accounts`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.access.objects import account_object, new_account_key_object, new_account_object
from app.api import admin_schemas as schemas
from app.api.body import read_body_as
from app.api.dependencies import RuntimeOf, only_query
from app.api.errors import reply
from app.api.params import list_page
from app.api.route_docs import CURSOR_PARAMETERS, body_of, error_answers
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
from app.protocol.requests.bodies.organization import CreateAccountKey, CreateServiceAccount, UpdateServiceAccount

router = APIRouter(
    prefix=f"{PROJECTS}/{{project_id}}/service_accounts", tags=["organization"], dependencies=[Depends(known_ids)]
)

_no_query = Depends(only_query())


@router.post(
    "",
    summary="Create a service account, with its first key",
    description="The answer is the only one that has the key.",
    responses={200: {"model": schemas.NewServiceAccount}, **error_answers(400, 404, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(CreateServiceAccount)},
    response_model=None,
    dependencies=[_no_query],
)
async def create_account(project_id: str, request: Request, runtime: RuntimeOf, to: AccountsOf) -> Response:
    sent = await read_body_as(CreateServiceAccount, request, runtime.settings)
    if sent.create_service_account_only and sent.expires_in_seconds is not None:
        message = "'expires_in_seconds' is the lifetime of a key, but 'create_service_account_only' asks for none."
        raise InvalidRequest(message, "expires_in_seconds", "invalid_value")
    with_key = not sent.create_service_account_only
    made = await to.create(project_id, sent.name, sent.expires_in_seconds, with_key=with_key)
    return reply(new_account_object(*made))


@router.get(
    "",
    summary="List service accounts",
    responses={200: {"model": schemas.ServiceAccountList}, **error_answers(400, 404, 503)},
    openapi_extra={"parameters": CURSOR_PARAMETERS},
    response_model=None,
    dependencies=[Depends(only_query("after", "limit"))],
)
async def list_accounts(
    project_id: str, request: Request, to: AccountsOf, administration: AdministrationOf
) -> Response:
    page = list_page(request.query_params)
    await administration.project(project_id)
    return list_reply(await to.page(project_id, page), page, account_object)


@router.get(
    "/{service_account_id}",
    summary="Read a service account",
    responses={200: {"model": schemas.ServiceAccount}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[_no_query],
)
async def get_account(project_id: str, service_account_id: str, to: AccountsOf) -> Response:
    return reply(account_object(await to.get(project_id, service_account_id)))


@router.post(
    "/{service_account_id}",
    summary="Change a service account",
    responses={200: {"model": schemas.ServiceAccount}, **error_answers(400, 404, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(UpdateServiceAccount)},
    response_model=None,
    dependencies=[_no_query],
)
async def update_account(
    project_id: str, service_account_id: str, request: Request, runtime: RuntimeOf, to: AccountsOf
) -> Response:
    sent = await read_body_as(UpdateServiceAccount, request, runtime.settings)
    return reply(account_object(await to.change(project_id, service_account_id, sent.name, sent.role)))


@router.delete(
    "/{service_account_id}",
    summary="Delete a service account, and end its keys",
    responses={200: {"model": schemas.ServiceAccountDeleted}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[_no_query],
)
async def delete_account(project_id: str, service_account_id: str, to: AccountsOf) -> Response:
    await to.delete(project_id, service_account_id)
    return deleted(service_account_id, "organization.project.service_account")


@router.post(
    "/{service_account_id}/api_keys",
    summary="Create a key of a service account",
    description="The answer is the only one that has the key.",
    responses={200: {"model": schemas.NewAccountKey}, **error_answers(400, 404, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(CreateAccountKey)},
    response_model=None,
    dependencies=[_no_query],
)
async def create_key(
    project_id: str, service_account_id: str, request: Request, runtime: RuntimeOf, to: AccountsOf
) -> Response:
    sent = await read_body_as(CreateAccountKey, request, runtime.settings)
    made = await to.create_key(
        project_id, service_account_id, sent.name, scopes_of(sent.scopes), sent.expires_in_seconds
    )
    return reply(new_account_key_object(made))
