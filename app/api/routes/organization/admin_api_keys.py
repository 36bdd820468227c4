"""`/v1/organization/admin_api_keys`: the keys of the operators."""

from __future__ import annotations

from app.access.caller import OPERATOR_SCOPES
from app.api.admin_objects import AdminKey, DeletedObject, List, NewAdminKey
from app.api.dependencies import CallerOf, RuntimeOf
from app.api.queries import OrderedQuery
from app.api.routes.organization.common import AdministrationOf, organization_router
from app.api.routes.route import Asked, Sent
from app.protocol.requests.bodies.organization import CreateAdminKey
from app.store.tenants import api_keys

router = organization_router("admin_api_keys")


@router.post(
    "",
    summary="Create an admin key",
    description="It allows what the caller's key allows. The answer is the only one that has the key.",
)
async def create_key(sent: Sent[CreateAdminKey], caller: CallerOf, to: AdministrationOf) -> NewAdminKey:
    made = await to.create_key(None, sent.name, caller.scopes & OPERATOR_SCOPES, sent.expires_in_seconds or None)
    return NewAdminKey.of(made.row, value=made.secret)


@router.get("", summary="List the admin keys")
async def list_keys(query: Asked[OrderedQuery], runtime: RuntimeOf) -> List[AdminKey]:
    return List.of(await api_keys.find_page(runtime.db, None, query.page), AdminKey.of)


@router.get("/{key_id}", summary="Read an admin key")
async def get_key(key_id: str, to: AdministrationOf) -> AdminKey:
    return AdminKey.of(await to.key(None, key_id))


@router.delete("/{key_id}", summary="End an admin key")
async def delete_key(key_id: str, to: AdministrationOf) -> DeletedObject:
    await to.key(None, key_id)
    await to.revoke_key(key_id)
    return DeletedObject(id=key_id, object="organization.admin_api_key.deleted")
