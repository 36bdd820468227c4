"""`/v1/organization/projects`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from app.api.admin_objects import List, Project
from app.api.body import read_body_as
from app.api.dependencies import RuntimeOf
from app.api.docs.routes import body_of, error_answers
from app.api.queries import NO_QUERY, Flag, ListQuery
from app.api.routes.organization.common import PROJECTS, AdministrationOf, known_ids
from app.protocol.requests.bodies.organization import CreateProject, UpdateProject
from app.store.tenants import projects

router = APIRouter(prefix=PROJECTS, tags=["organization"], dependencies=[Depends(known_ids)])


class ProjectsQuery(ListQuery):
    include_archived: Flag = Field(False, description="Archived projects, too.")


@router.post(
    "",
    summary="Create a project",
    responses=error_answers(400, 413, 415, 503),
    openapi_extra={"requestBody": body_of(CreateProject)},
    dependencies=[NO_QUERY],
)
async def create_project(request: Request, runtime: RuntimeOf, to: AdministrationOf) -> Project:
    sent = await read_body_as(CreateProject, request, runtime.settings)
    return Project.of(await to.create_project(sent.name))


@router.get(
    "",
    summary="List projects",
    responses=error_answers(400, 503),
    openapi_extra={"parameters": ProjectsQuery.parameters()},
)
async def list_projects(
    query: Annotated[ProjectsQuery, Depends(ProjectsQuery.read)], runtime: RuntimeOf
) -> List[Project]:
    found = await projects.find_page(runtime.db, query.page, archived=query.include_archived)
    return List.of(found, query.page, Project.of)


@router.get(
    "/{project_id}",
    summary="Read a project",
    responses=error_answers(400, 404, 503),
    dependencies=[NO_QUERY],
)
async def get_project(project_id: str, to: AdministrationOf) -> Project:
    return Project.of(await to.project(project_id))


@router.post(
    "/{project_id}",
    summary="Rename a project",
    responses=error_answers(400, 404, 413, 415, 503),
    openapi_extra={"requestBody": body_of(UpdateProject)},
    dependencies=[NO_QUERY],
)
async def update_project(project_id: str, request: Request, runtime: RuntimeOf, to: AdministrationOf) -> Project:
    sent = await read_body_as(UpdateProject, request, runtime.settings)
    renamed = to.project(project_id) if sent.name is None else to.change_project(project_id, name=sent.name)
    return Project.of(await renamed)


@router.post(
    "/{project_id}/archive",
    summary="Archive a project",
    description="Its keys are refused from now on. What it has in the background runs to its end.",
    responses=error_answers(400, 404, 503),
    dependencies=[NO_QUERY],
)
async def archive_project(project_id: str, to: AdministrationOf) -> Project:
    return Project.of(await to.archive_project(project_id))
