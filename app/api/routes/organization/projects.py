"""`/v1/organization/projects`."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from app.access.objects import project_object
from app.api import admin_schemas as schemas
from app.api.body import read_body_as
from app.api.dependencies import RuntimeOf, only_query
from app.api.errors import reply
from app.api.params import boolean, list_page
from app.api.route_docs import CURSOR_PARAMETERS, INCLUDE_ARCHIVED, body_of, error_answers
from app.api.routes.organization.common import PROJECTS, AdministrationOf, known_ids, list_reply
from app.protocol.requests.bodies.organization import CreateProject, UpdateProject

router = APIRouter(prefix=PROJECTS, tags=["organization"], dependencies=[Depends(known_ids)])

_no_query = Depends(only_query())


@router.post(
    "",
    summary="Create a project",
    responses={200: {"model": schemas.Project}, **error_answers(400, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(CreateProject)},
    response_model=None,
    dependencies=[_no_query],
)
async def create_project(request: Request, runtime: RuntimeOf, to: AdministrationOf) -> Response:
    sent = await read_body_as(CreateProject, request, runtime.settings)
    return reply(project_object(await to.create_project(sent.name)))


@router.get(
    "",
    summary="List projects",
    responses={200: {"model": schemas.ProjectList}, **error_answers(400, 503)},
    openapi_extra={"parameters": [*CURSOR_PARAMETERS, INCLUDE_ARCHIVED]},
    response_model=None,
    dependencies=[Depends(only_query("after", "limit", "include_archived"))],
)
async def list_projects(request: Request, to: AdministrationOf) -> Response:
    query = request.query_params
    page = list_page(query)
    return list_reply(
        await to.page_of_projects(page, archived=boolean(query, "include_archived")), page, project_object
    )


@router.get(
    "/{project_id}",
    summary="Read a project",
    responses={200: {"model": schemas.Project}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[_no_query],
)
async def get_project(project_id: str, to: AdministrationOf) -> Response:
    return reply(project_object(await to.project(project_id)))


@router.post(
    "/{project_id}",
    summary="Rename a project",
    responses={200: {"model": schemas.Project}, **error_answers(400, 404, 413, 415, 503)},
    openapi_extra={"requestBody": body_of(UpdateProject)},
    response_model=None,
    dependencies=[_no_query],
)
async def update_project(project_id: str, request: Request, runtime: RuntimeOf, to: AdministrationOf) -> Response:
    sent = await read_body_as(UpdateProject, request, runtime.settings)
    renamed = to.project(project_id) if sent.name is None else to.rename_project(project_id, sent.name)
    return reply(project_object(await renamed))


@router.post(
    "/{project_id}/archive",
    summary="Archive a project",
    description="Its keys are refused from now on. What it has in the background runs to its end.",
    responses={200: {"model": schemas.Project}, **error_answers(400, 404, 503)},
    response_model=None,
    dependencies=[_no_query],
)
async def archive_project(project_id: str, to: AdministrationOf) -> Response:
    return reply(project_object(await to.archive_project(project_id)))
