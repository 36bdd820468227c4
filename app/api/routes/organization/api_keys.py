"""`/v1/organization/projects/{id}/api_keys`: all keys of a project, without the keys themselves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.api.admin_objects import DeletedObject, List, ProjectKey
from app.api.dependencies import RuntimeOf
from app.api.queries import ListQuery
from app.api.routes.organization.common import AdministrationOf, organization_router, scopes_of
from app.api.routes.route import Asked, Sent
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.organization import UpdateKey
from app.store.tenants import api_keys

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
    if query.owner_project_access == ("active" if project.archived_at else "inactive"):
        found = [], False  # All keys of a project have the same access.
    return List.of(found, ProjectKey.owned)


@router.get("/{key_id}", summary="Read a key of a project")
async def get_key(project_id: str, key_id: str, to: AdministrationOf) -> ProjectKey:
    return ProjectKey.owned(await to.key(project_id, key_id))


@router.post("/{key_id}", summary="Change what a key allows, and when it expires")
async def update_key(project_id: str, key_id: str, sent: Sent[UpdateKey], to: AdministrationOf) -> ProjectKey:
    if not sent.model_fields_set:
        message = "There is nothing to change: send 'scopes', 'expires_in_seconds' or both."
        raise InvalidRequest(message, None, "missing_required_parameter")
    scopes = scopes_of(sent.scopes) if "scopes" in sent.model_fields_set else None
    return ProjectKey.owned(await to.change_key(project_id, key_id, scopes, sent.expires_in_seconds or None))


@router.delete("/{key_id}", summary="End a key of a project")
async def delete_key(project_id: str, key_id: str, to: AdministrationOf) -> DeletedObject:
    await to.key(project_id, key_id)
    await to.revoke_key(key_id)
    return DeletedObject(id=key_id, object="organization.project.api_key.deleted")
