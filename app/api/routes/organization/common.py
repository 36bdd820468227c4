"""What the routes of the admin API share: their dependencies, and how they answer lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from starlette.responses import Response

from app.access.administration import Administration
from app.access.changes import Changes
from app.access.service_accounts import ServiceAccounts
from app.api.dependencies import CallerOf, RuntimeOf
from app.api.errors import reply
from app.protocol.errors import NotFound
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.ids import may_exist
from app.responses.paging import page_object, unknown_cursor
from app.store.paging import Page

PROJECTS = "/v1/organization/projects"

_IDS = frozenset({"project_id", "service_account_id", "key_id"})

T = TypeVar("T")


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


def list_reply(found: tuple[Sequence[T], bool] | None, page: Page, as_object: Callable[[T], Json]) -> Response:
    """Returns the answer to a list. Raises InvalidRequest if the cursor names no entry."""
    if found is None:
        name, cursor = ("before", page.before) if page.after is None else ("after", page.after)
        raise unknown_cursor(cursor or "", name)
    rows, has_more = found
    return reply(page_object([as_object(row) for row in rows], has_more=has_more))


def deleted(object_id: str, kind: str) -> Response:
    return reply({"id": object_id, "object": f"{kind}.deleted", "deleted": True})
