"""`/v1/organization/projects`, and which models a project may use, as OpenAI's clients say it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from pydantic import Field

from app.api.admin_objects import List, ModelPermissions, ModelPermissionsDeleted, Project
from app.api.dependencies import Runtime, RuntimeOf
from app.api.queries import Flag, ListQuery
from app.api.routes.organization.common import AdministrationOf, organization_router
from app.api.routes.route import Asked, Body, Sent
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.organization import CreateProject, EraseProject, SetModelPermissions, UpdateProject
from app.protocol.text import shortened
from app.store.tenants import projects
from app.store.tenants.projects import ALL, EVERYTHING, NOT

router = organization_router("projects")
permissions = organization_router("projects/{project_id}")

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


@permissions.get("/model_permissions", summary="Read which models a project may use")
async def get_models(project_id: str, to: AdministrationOf) -> ModelPermissions:
    return ModelPermissions.of(await to.project(project_id))


@permissions.post("/model_permissions", summary="Set which models a project may use")
async def set_models(
    project_id: str, sent: Sent[SetModelPermissions], runtime: RuntimeOf, to: AdministrationOf
) -> ModelPermissions:
    _check_served(sent.model_ids, runtime)
    names = set(sent.model_ids) if sent.mode == "allow_list" else {ALL, *(NOT + name for name in sent.model_ids)}
    return ModelPermissions.of(await to.change_project(project_id, models=names))


@permissions.delete("/model_permissions", summary="Let a project use every model")
async def delete_models(project_id: str, to: AdministrationOf) -> ModelPermissionsDeleted:
    await to.change_project(project_id, models=EVERYTHING)
    return ModelPermissionsDeleted()


def _check_served(names: list[str], runtime: Runtime) -> None:
    """Raises InvalidRequest for the first name of no model: a rule with a wrong name would rule nothing."""
    for index, name in enumerate(names):
        if runtime.catalogs.whole.get(name) is None:
            where = f"model_ids[{index}]"
            message = f"Invalid '{where}': there is no model '{shortened(name)}'. 'GET /v1/models' lists the models."
            raise InvalidRequest(message, where, "model_not_found")
