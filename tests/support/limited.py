"""Projects with limits, and responses that reserve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import text

from app.protocol.limits import ALL_MODELS, LimitKind
from app.store.database import Database
from app.store.responses.new_rows import NewResponse, Reserving
from app.store.tenants import limits, projects
from app.store.tenants.limits import LimitRow
from tests.support.rows import new_response

PROJECT = "proj_limited"
OUTPUT = 100
"""Output tokens that a response reserves."""


async def limited_project(db: Database, project: str = PROJECT, **values: int) -> str:
    """Makes a project with these limits on all models."""
    async with db.begin() as connection:
        await projects.create(connection, project, project)
    for kind, value in values.items():
        await put(db, LimitKind(kind), value, project=project)
    return project


async def put(db: Database, kind: LimitKind, value: int, model: str = ALL_MODELS, project: str = PROJECT) -> None:
    async with db.begin() as connection:
        assert await limits.put(connection, LimitRow(project, model, kind, value), 100)


async def remove(db: Database, kind: LimitKind) -> bool:
    async with db.begin() as connection:
        return await limits.remove(connection, PROJECT, ALL_MODELS, kind)


async def used(db: Database, project: str = PROJECT) -> dict[str, float]:
    """What is taken of each limit on all models."""
    states = await limits.states(db, project)
    return {state.kind.value: state.used for state in states if state.model == ALL_MODELS}


async def stop_the_clock(db: Database) -> None:
    """Nothing is refilled for an hour."""
    await db.execute(text("UPDATE limits SET as_of = now() + interval '1 hour'"))


def reserving(project: str = PROJECT, output_tokens: int | None = OUTPUT, **request: Any) -> NewResponse:
    return replace(new_response(None, project, **request), reserving=Reserving(0, output_tokens))
