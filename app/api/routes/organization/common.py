"""What the routes of the admin API share: their dependencies."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from app.access.administration import Administration
from app.access.changes import Changes
from app.access.service_accounts import ServiceAccounts
from app.api.dependencies import CallerOf, RuntimeOf
from app.protocol.errors import NotFound
from app.protocol.text import shortened
from app.responses.ids import may_exist

PROJECTS = "/v1/organization/projects"

_IDS = frozenset({"project_id", "service_account_id", "key_id"})


async def known_ids(request: Request) -> None:
    """Raises NotFound for a path with an id that is not worth a query."""
    for name, value in request.path_params.items():
        if name in _IDS and not may_exist(value):
            raise NotFound(f"There is nothing with the id '{shortened(value)}'.", name)


async def changes_of(runtime: RuntimeOf, caller: CallerOf) -> Changes:
    """Returns what makes changes in the name of the caller."""
    return Changes(runtime.db, runtime.pubsub, caller.key_id)


ChangesOf = Annotated[Changes, Depends(changes_of)]


async def administration_of(runtime: RuntimeOf, changes: ChangesOf) -> Administration:
    return Administration(changes, runtime.settings.new_project_limits)


async def accounts_of(changes: ChangesOf) -> ServiceAccounts:
    return ServiceAccounts(changes)


AdministrationOf = Annotated[Administration, Depends(administration_of)]
AccountsOf = Annotated[ServiceAccounts, Depends(accounts_of)]
