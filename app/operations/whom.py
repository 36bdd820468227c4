"""Whom an operator means: a project by its id or name, a key by its id. An unknown one is refused."""

from __future__ import annotations

from dataclasses import replace

from app.access.changes import AdministrationError, NothingThere
from app.operations.words import some_of
from app.protocol.text import shortened
from app.store.batches import rows as batches
from app.store.database import Database
from app.store.operations.filters import ResponseFilter
from app.store.tenants import api_keys, projects


async def project_of(db: Database, named: str, param: str = "project") -> str:
    """Returns the project's id. Raises NothingThere, AdministrationError if several have the name, StoreUnavailable."""
    found = await projects.find_named(db, named)
    if not found:
        raise NothingThere(f"there is no project '{shortened(named)}'", param)
    if len(found) > 1:
        message = f"several projects have the name '{shortened(named)}'; name one by its id: {some_of(found)}"
        raise AdministrationError(message, param)
    return found[0]


async def resolved(db: Database, only: ResponseFilter, inside: str = "") -> ResponseFilter:
    """The filter with its project's id; `inside` is what stands before the names of its fields in a request.

    Raises as `project_of` does, and NothingThere for a key or a batch that does not exist.
    """
    if only.key is not None and only.key not in await api_keys.names(db, [only.key]):
        raise NothingThere(f"there is no API key with the id '{shortened(only.key)}'", f"{inside}key")
    if only.batch is not None and await batches.find(db, None, only.batch) is None:
        raise NothingThere(f"there is no batch with the id '{shortened(only.batch)}'", f"{inside}batch")
    if only.project is None:
        return only
    return replace(only, project=await project_of(db, only.project, f"{inside}project"))
