"""`/v1/organization/projects`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from pydantic import Field

from app.api.admin_objects import List, Project
from app.api.dependencies import RuntimeOf
from app.api.queries import Flag, ListQuery
from app.api.routes.organization.common import AdministrationOf, organization_router
from app.api.routes.route import Asked, Body, Sent
from app.protocol.requests.bodies.organization import CreateProject, EraseProject, UpdateProject
from app.store.tenants import projects

router = organization_router("projects")

_Erasure = Annotated[EraseProject, Depends(Body(EraseProject, may_be_empty=True).read)]


class ProjectsQuery(ListQuery):
    include_archived: Flag = Field(False, description="Archived projects, too.")


@router.post("", summary="Create a project")
async def create_project(sent: Sent[CreateProject], to: AdministrationOf) -> Project:
    return Project.of(await to.create_project(sent.name, **sent.own))


@router.get("", summary="List projects")
async def list_projects(query: Asked[ProjectsQuery], runtime: RuntimeOf) -> List[Project]:
    found = await projects.find_page(runtime.db, query.page, archived=query.include_archived)
    return List.of(found, Project.of)


@router.get("/{project_id}", summary="Read a project")
async def get_project(project_id: str, to: AdministrationOf) -> Project:
    return Project.of(await to.project(project_id))


@router.post("/{project_id}", summary="Change a project")
async def update_project(project_id: str, sent: Sent[UpdateProject], to: AdministrationOf) -> Project:
    changes = {"name": sent.name, "conversation_days": sent.conversation_days, **sent.own}
    return Project.of(await to.change_project(project_id, **changes))


@router.post(
    "/{project_id}/archive",
    summary="Archive a project",
    description="Its keys are refused from now on. What it has in the background runs to its end.",
)
async def archive_project(project_id: str, to: AdministrationOf) -> Project:
    return Project.of(await to.archive_project(project_id))


@router.post(
    "/{project_id}/erase",
    summary="Erase a project",
    description="Archives it, and erases everything of it but its row, the ledger and the audit log.",
)
async def erase_project(project_id: str, sent: _Erasure, to: AdministrationOf) -> Project:
    return Project.of(await to.erase_project(project_id, sent.after_days))
