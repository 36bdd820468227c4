"""`/v1/organization/projects/{id}/api_keys`: all keys of a project, without the keys themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from app.api.admin_objects import DeletedObject, List, ProjectKey
from app.api.dependencies import Runtime, RuntimeOf
from app.api.queries import ListQuery
from app.api.routes.organization.common import AdministrationOf, organization_router, scopes_of
from app.api.routes.route import Asked, Sent
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.organization import UpdateKey
from app.store.tenants import api_keys, service_accounts
from app.store.tenants.api_keys import KeyRow
from app.store.tenants.service_accounts import AccountRow

router = organization_router("projects/{project_id}/api_keys")


class KeysQuery(ListQuery):
    owner_project_access: Literal["any", "active", "inactive"] = Field(
        "any", description="Keys of a project that is archived are `inactive`."
    )


@router.get("", summary="List the keys of a project")
async def list_keys(
    project_id: str, query: Asked[KeysQuery], to: AdministrationOf, runtime: RuntimeOf
) -> List[ProjectKey]:
    project = await to.project(project_id)
    found = await api_keys.find_page(runtime.db, project_id, query.page)
    if found is not None and query.owner_project_access == ("active" if project.archived_at else "inactive"):
        found = [], False  # All keys of a project have the same access.
    owners = await _owners([] if found is None else found[0], runtime)
    return List.of(found, query.page, lambda key: ProjectKey.owned(key, owners))


@router.get("/{key_id}", summary="Read a key of a project")
async def get_key(project_id: str, key_id: str, to: AdministrationOf, runtime: RuntimeOf) -> ProjectKey:
    return await _shown(await to.key(project_id, key_id), runtime)


@router.post("/{key_id}", summary="Change what a key allows, and when it expires")
async def update_key(
    project_id: str, key_id: str, sent: Sent[UpdateKey], runtime: RuntimeOf, to: AdministrationOf
) -> ProjectKey:
    if not sent.model_fields_set:
        message = "There is nothing to change: send 'scopes', 'expires_in_seconds' or both."
        raise InvalidRequest(message, None, "missing_required_parameter")
    scopes = scopes_of(sent.scopes) if "scopes" in sent.model_fields_set else None
    return await _shown(await to.change_key(project_id, key_id, scopes, sent.expires_in_seconds or None), runtime)


@router.delete("/{key_id}", summary="End a key of a project")
async def delete_key(project_id: str, key_id: str, to: AdministrationOf) -> DeletedObject:
    await to.key(project_id, key_id)
    await to.revoke_key(key_id)
    return DeletedObject(id=key_id, object="organization.project.api_key.deleted")


async def _shown(key: KeyRow, runtime: Runtime) -> ProjectKey:
    return ProjectKey.owned(key, await _owners([key], runtime))


async def _owners(keys: Sequence[KeyRow], runtime: Runtime) -> dict[str, AccountRow]:
    """Returns the service accounts of the keys, by id, deleted ones included."""
    return await service_accounts.find(runtime.db, {key.service_account for key in keys if key.service_account})
