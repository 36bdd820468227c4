"""What the routes of the admin API share: how their routers are made, their dependencies, and scopes by their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends

from app.access.administration import Administration
from app.access.caller import Scope
from app.access.service_accounts import ServiceAccounts
from app.api.dependencies import ChangesOf, RuntimeOf
from app.api.routes.route import Route
from app.protocol.requests.bodies.organization import READ_ONLY


def organization_router(path: str) -> APIRouter:
    """Returns a router for the routes below `/v1/organization/{path}`."""
    return APIRouter(prefix=f"/v1/organization/{path}", tags=["organization"], route_class=Route)


def scopes_of(sent: Sequence[str]) -> frozenset[Scope]:
    """Returns the scopes of these names."""
    return frozenset(Scope.READ if name == READ_ONLY else Scope(name) for name in sent)


async def administration_of(runtime: RuntimeOf, changes: ChangesOf) -> Administration:
    return Administration(changes, runtime.settings.new_project_limits)


async def accounts_of(changes: ChangesOf) -> ServiceAccounts:
    return ServiceAccounts(changes)


AdministrationOf = Annotated[Administration, Depends(administration_of)]
AccountsOf = Annotated[ServiceAccounts, Depends(accounts_of)]
