"""`/v1/organization/api_keys`: Longhaul's own, for keys of projects and of the operators alike."""

from __future__ import annotations

from app.access.caller import OPERATOR_SCOPES, PROJECT_SCOPES
from app.api.admin_objects import DeletedObject, NewKey
from app.api.dependencies import CallerOf
from app.api.docs.routes import error_answers
from app.api.routes.organization.common import AdministrationOf, organization_router, scopes_of
from app.api.routes.route import Sent
from app.protocol.requests.bodies.organization import CreateKey, RotateKey

router = organization_router("api_keys")


@router.post(
    "",
    summary="Create a key of a project, or of the operators",
    description="The answer is the only one that has the key.",
    responses=error_answers(404),
)
async def create_key(sent: Sent[CreateKey], caller: CallerOf, to: AdministrationOf) -> NewKey:
    allowed = caller.scopes & OPERATOR_SCOPES if sent.project is None else PROJECT_SCOPES
    made = await to.create_key(sent.project, sent.name, scopes_of(sent.scopes) or allowed, sent.expires_in_seconds)
    return NewKey.of(made.row, value=made.secret)


@router.post(
    "/{key_id}/rotate",
    summary="Make a key like this one, which ends after an overlap",
    description="The answer is the only one that has the new key.",
)
async def rotate_key(key_id: str, sent: Sent[RotateKey], to: AdministrationOf) -> NewKey:
    made = await to.rotate_key(key_id, sent.overlap_seconds)
    return NewKey.of(made.row, value=made.secret)


@router.delete("/{key_id}", summary="End a key, and what it has open")
async def delete_key(key_id: str, to: AdministrationOf) -> DeletedObject:
    await to.revoke_key(key_id)
    return DeletedObject(id=key_id, object="organization.api_key.deleted")
