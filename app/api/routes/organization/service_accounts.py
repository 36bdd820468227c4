"""`/v1/organization/projects/{id}/service_accounts`."""

from __future__ import annotations

from app.access.caller import PROJECT_SCOPES
from app.api.admin_objects import DeletedObject, List, NewAccountKey, NewServiceAccount, ServiceAccount
from app.api.dependencies import RuntimeOf
from app.api.queries import ListQuery
from app.api.routes.organization.common import AccountsOf, AdministrationOf, organization_router, scopes_of
from app.api.routes.route import Asked, Sent
from app.protocol.requests.bodies.organization import CreateAccountKey, CreateServiceAccount, UpdateServiceAccount
from app.store.tenants import service_accounts

router = organization_router("projects/{project_id}/service_accounts")


@router.post(
    "",
    summary="Create a service account, with its first key",
    description="The answer is the only one that has the key.",
)
async def create_account(project_id: str, sent: Sent[CreateServiceAccount], to: AccountsOf) -> NewServiceAccount:
    account, key = await to.create(project_id, sent.name, sent.expires_in_seconds)
    return NewServiceAccount.of(account, api_key=NewAccountKey.of(key.row, value=key.secret))


@router.get("", summary="List service accounts")
async def list_accounts(
    project_id: str, query: Asked[ListQuery], runtime: RuntimeOf, to: AdministrationOf
) -> List[ServiceAccount]:
    await to.project(project_id)
    found = await service_accounts.find_page(runtime.db, project_id, query.page)
    return List.of(found, ServiceAccount.of)


@router.get("/{service_account_id}", summary="Read a service account")
async def get_account(project_id: str, service_account_id: str, to: AccountsOf) -> ServiceAccount:
    return ServiceAccount.of(await to.get(project_id, service_account_id))


@router.post("/{service_account_id}", summary="Rename a service account")
async def update_account(
    project_id: str, service_account_id: str, sent: Sent[UpdateServiceAccount], to: AccountsOf
) -> ServiceAccount:
    return ServiceAccount.of(await to.rename(project_id, service_account_id, sent.name))


@router.delete("/{service_account_id}", summary="Delete a service account, and end its keys")
async def delete_account(project_id: str, service_account_id: str, to: AccountsOf) -> DeletedObject:
    await to.delete(project_id, service_account_id)
    return DeletedObject(id=service_account_id, object="organization.project.service_account.deleted")


@router.post(
    "/{service_account_id}/api_keys",
    summary="Create a key of a service account",
    description="The answer is the only one that has the key.",
)
async def create_key(
    project_id: str, service_account_id: str, sent: Sent[CreateAccountKey], to: AccountsOf
) -> NewAccountKey:
    scopes = scopes_of(sent.scopes) or PROJECT_SCOPES
    made = await to.create_key(project_id, service_account_id, sent.name, scopes, sent.expires_in_seconds)
    return NewAccountKey.of(made.row, value=made.secret)
