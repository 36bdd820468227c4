"""`/v1/organization/admin_api_keys`: the keys of the operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from app.access.caller import OPERATOR_SCOPES
from app.api.admin_objects import AdminKey, DeletedObject, List, NewAdminKey
from app.api.body import read_body_as
from app.api.dependencies import CallerOf, RuntimeOf
from app.api.docs.routes import body_of, error_answers
from app.api.queries import NO_QUERY, OrderedQuery
from app.api.routes.organization.common import AdministrationOf, known_ids
from app.protocol.requests.bodies.organization import CreateAdminKey
from app.store.tenants import api_keys

router = APIRouter(prefix="/v1/organization/admin_api_keys", tags=["organization"], dependencies=[Depends(known_ids)])


@router.post(
    "",
    summary="Create an admin key",
    description="It allows what the caller's key allows. The answer is the only one that has the key.",
    responses=error_answers(400, 413, 415, 503),
    openapi_extra={"requestBody": body_of(CreateAdminKey)},
    dependencies=[NO_QUERY],
)
async def create_key(request: Request, runtime: RuntimeOf, caller: CallerOf, to: AdministrationOf) -> NewAdminKey:
    sent = await read_body_as(CreateAdminKey, request, runtime.settings)
    made = await to.create_key(None, sent.name, caller.scopes & OPERATOR_SCOPES, sent.expires_in_seconds or None)
    return NewAdminKey(**dict(AdminKey.of(made.row)), value=made.secret)


@router.get(
    "",
    summary="List the admin keys",
    responses=error_answers(400, 503),
    openapi_extra={"parameters": OrderedQuery.parameters()},
)
async def list_keys(query: Annotated[OrderedQuery, Depends(OrderedQuery.read)], runtime: RuntimeOf) -> List[AdminKey]:
    return List.of(await api_keys.find_page(runtime.db, None, query.page), query.page, AdminKey.of)


@router.get(
    "/{key_id}",
    summary="Read an admin key",
    responses=error_answers(400, 404, 503),
    dependencies=[NO_QUERY],
)
async def get_key(key_id: str, to: AdministrationOf) -> AdminKey:
    return AdminKey.of(await to.key(None, key_id))


@router.delete(
    "/{key_id}",
    summary="End an admin key",
    responses=error_answers(400, 404, 503),
    dependencies=[NO_QUERY],
)
async def delete_key(key_id: str, to: AdministrationOf) -> DeletedObject:
    await to.key(None, key_id)
    await to.revoke_key(key_id)
    return DeletedObject(id=key_id, object="organization.admin_api_key.deleted")
