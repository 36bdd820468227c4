"""`/v1/organization/projects/{id}/api_keys`: all keys of a project, without the keys themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from app.api.admin_objects import DeletedObject, List, ProjectKey
from app.api.body import read_body_as
from app.api.dependencies import Runtime, RuntimeOf
from app.api.docs.routes import body_of, error_answers
from app.api.queries import NO_QUERY, ListQuery
from app.api.routes.organization.common import PROJECTS, AdministrationOf, known_ids
from app.api.routes.organization.scopes import scopes_of
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.organization import UpdateKey
from app.store.tenants import api_keys, service_accounts
from app.store.tenants.api_keys import KeyRow
from app.store.tenants.service_accounts import AccountRow

router = APIRouter(
    prefix=f"{PROJECTS}/{{project_id}}/api_keys", tags=["organization"], dependencies=[Depends(known_ids)]
)


class KeysQuery(ListQuery):
    owner_project_access: Literal["any", "active", "inactive"] = Field(
        "any", description="Keys of a project that is archived are `inactive`."
    )


@router.get(
    "",
    summary="List the keys of a project",
    responses=error_answers(400, 404, 503),
    openapi_extra={"parameters": KeysQuery.parameters()},
)
async def list_keys(
    project_id: str,
    query: Annotated[KeysQuery, Depends(KeysQuery.read)],
    to: AdministrationOf,
    runtime: RuntimeOf,
) -> List[ProjectKey]:
    project = await to.project(project_id)
    found = await api_keys.find_page(runtime.db, project_id, query.page)
    if found is not None and query.owner_project_access == ("active" if project.archived_at else "inactive"):
        found = [], False  # All keys of a project have the same access.
    owners = await _owners([] if found is None else found[0], runtime)
    return List.of(found, query.page, lambda key: ProjectKey.of(key, owners))


@router.get(
    "/{key_id}",
    summary="Read a key of a project",
    responses=error_answers(400, 404, 503),
    dependencies=[NO_QUERY],
)
async def get_key(project_id: str, key_id: str, to: AdministrationOf, runtime: RuntimeOf) -> ProjectKey:
    return await _shown(await to.key(project_id, key_id), runtime)


@router.post(
    "/{key_id}",
    summary="Change what a key allows, and when it expires",
    responses=error_answers(400, 404, 413, 415, 503),
    openapi_extra={"requestBody": body_of(UpdateKey)},
    dependencies=[NO_QUERY],
)
async def update_key(
    project_id: str,
    key_id: str,
    request: Request,
    runtime: RuntimeOf,
    to: AdministrationOf,
) -> ProjectKey:
    sent = await read_body_as(UpdateKey, request, runtime.settings)
    if not sent.model_fields_set:
        message = "There is nothing to change: send 'scopes', 'expires_in_seconds' or both."
        raise InvalidRequest(message, None, "missing_required_parameter")
    scopes = scopes_of(sent.scopes) if "scopes" in sent.model_fields_set else None
    return await _shown(await to.change_key(project_id, key_id, scopes, sent.expires_in_seconds or None), runtime)


@router.delete(
    "/{key_id}",
    summary="End a key of a project",
    responses=error_answers(400, 404, 503),
    dependencies=[NO_QUERY],
)
async def delete_key(project_id: str, key_id: str, to: AdministrationOf) -> DeletedObject:
    await to.key(project_id, key_id)
    await to.revoke_key(key_id)
    return DeletedObject(id=key_id, object="organization.project.api_key.deleted")


async def _shown(key: KeyRow, runtime: Runtime) -> ProjectKey:
    return ProjectKey.of(key, await _owners([key], runtime))


async def _owners(keys: Sequence[KeyRow], runtime: Runtime) -> dict[str, AccountRow]:
    """Returns the service accounts of the keys, by id, deleted ones included."""
    return await service_accounts.find(runtime.db, {key.service_account for key in keys if key.service_account})
