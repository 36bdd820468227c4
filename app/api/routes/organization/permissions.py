"""Which models a project may use, as OpenAI's clients say it: `.../model_permissions`."""

from __future__ import annotations

from app.api.admin_objects import ModelPermissions, ModelPermissionsDeleted
from app.api.dependencies import Runtime, RuntimeOf
from app.api.routes.organization.common import AdministrationOf, organization_router
from app.api.routes.route import Sent
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.organization import SetModelPermissions
from app.protocol.text import shortened
from app.store.tenants.projects import ALL, EVERYTHING, NOT

router = organization_router("projects/{project_id}")


@router.get("/model_permissions", summary="Read which models a project may use")
async def get_models(project_id: str, to: AdministrationOf) -> ModelPermissions:
    return ModelPermissions.of(await to.project(project_id))


@router.post("/model_permissions", summary="Set which models a project may use")
async def set_models(
    project_id: str, sent: Sent[SetModelPermissions], runtime: RuntimeOf, to: AdministrationOf
) -> ModelPermissions:
    _check_served(sent.model_ids, runtime)
    names = set(sent.model_ids) if sent.mode == "allow_list" else {ALL, *(NOT + name for name in sent.model_ids)}
    return ModelPermissions.of(await to.change_project(project_id, models=names))


@router.delete("/model_permissions", summary="Let a project use every model")
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
