"""`/v1/organization/projects/{id}/service_accounts`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from app.api.admin_objects import DeletedObject, List, NewAccountKey, NewServiceAccount, ServiceAccount
from app.api.body import read_body_as
from app.api.dependencies import RuntimeOf
from app.api.docs.routes import body_of, error_answers
from app.api.queries import NO_QUERY, ListQuery
from app.api.routes.organization.common import (
    PROJECTS,
    AccountsOf,
    AdministrationOf,
    known_ids,
)
from app.api.routes.organization.scopes import scopes_of
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.organization import CreateAccountKey, CreateServiceAccount, UpdateServiceAccount
from app.store.tenants import service_accounts

router = APIRouter(
    prefix=f"{PROJECTS}/{{project_id}}/service_accounts", tags=["organization"], dependencies=[Depends(known_ids)]
)


@router.post(
    "",
    summary="Create a service account, with its first key",
    description="The answer is the only one that has the key.",
    responses=error_answers(400, 404, 413, 415, 503),
    openapi_extra={"requestBody": body_of(CreateServiceAccount)},
    dependencies=[NO_QUERY],
)
async def create_account(project_id: str, request: Request, runtime: RuntimeOf, to: AccountsOf) -> NewServiceAccount:
    sent = await read_body_as(CreateServiceAccount, request, runtime.settings)
    if sent.create_service_account_only and sent.expires_in_seconds is not None:
        message = "'expires_in_seconds' is the lifetime of a key, but 'create_service_account_only' asks for none."
        raise InvalidRequest(message, "expires_in_seconds", "invalid_value")
    with_key = not sent.create_service_account_only
    account, key = await to.create(project_id, sent.name, sent.expires_in_seconds, with_key=with_key)
    api_key = None if key is None else NewAccountKey.of(key)
    return NewServiceAccount(**dict(ServiceAccount.of(account)), api_key=api_key)


@router.get(
    "",
    summary="List service accounts",
    responses=error_answers(400, 404, 503),
    openapi_extra={"parameters": ListQuery.parameters()},
)
async def list_accounts(
    project_id: str,
    query: Annotated[ListQuery, Depends(ListQuery.read)],
    runtime: RuntimeOf,
    administration: AdministrationOf,
) -> List[ServiceAccount]:
    await administration.project(project_id)
    found = await service_accounts.find_page(runtime.db, project_id, query.page)
    return List.of(found, query.page, ServiceAccount.of)


@router.get(
    "/{service_account_id}",
    summary="Read a service account",
    responses=error_answers(400, 404, 503),
    dependencies=[NO_QUERY],
)
async def get_account(project_id: str, service_account_id: str, to: AccountsOf) -> ServiceAccount:
    return ServiceAccount.of(await to.get(project_id, service_account_id))


@router.post(
    "/{service_account_id}",
    summary="Change a service account",
    responses=error_answers(400, 404, 413, 415, 503),
    openapi_extra={"requestBody": body_of(UpdateServiceAccount)},
    dependencies=[NO_QUERY],
)
async def update_account(
    project_id: str, service_account_id: str, request: Request, runtime: RuntimeOf, to: AccountsOf
) -> ServiceAccount:
    sent = await read_body_as(UpdateServiceAccount, request, runtime.settings)
    return ServiceAccount.of(await to.change(project_id, service_account_id, sent.name, sent.role))


@router.delete(
    "/{service_account_id}",
    summary="Delete a service account, and end its keys",
    responses=error_answers(400, 404, 503),
    dependencies=[NO_QUERY],
)
async def delete_account(project_id: str, service_account_id: str, to: AccountsOf) -> DeletedObject:
    await to.delete(project_id, service_account_id)
    return DeletedObject(id=service_account_id, object="organization.project.service_account.deleted")


@router.post(
    "/{service_account_id}/api_keys",
    summary="Create a key of a service account",
    description="The answer is the only one that has the key.",
    responses=error_answers(400, 404, 413, 415, 503),
    openapi_extra={"requestBody": body_of(CreateAccountKey)},
    dependencies=[NO_QUERY],
)
async def create_key(
    project_id: str, service_account_id: str, request: Request, runtime: RuntimeOf, to: AccountsOf
) -> NewAccountKey:
    sent = await read_body_as(CreateAccountKey, request, runtime.settings)
    made = await to.create_key(
        project_id, service_account_id, sent.name, scopes_of(sent.scopes), sent.expires_in_seconds
    )
    return NewAccountKey.of(made)
