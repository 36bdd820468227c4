"""What a project may use: `.../model_permissions` and `.../hosted_tool_permissions`."""

from __future__ import annotations

from app.access.tool_permissions import enabled_tools
from app.api.admin_objects import ModelPermissions, ModelPermissionsDeleted, ToolEnabled, ToolPermissions
from app.api.dependencies import Runtime, RuntimeOf
from app.api.routes.organization.common import AdministrationOf, organization_router
from app.api.routes.route import Sent
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.organization import SetModelPermissions, SetToolPermissions
from app.protocol.text import shortened
from app.store.tenants.projects import ProjectRow

router = organization_router("projects/{project_id}")


@router.get("/model_permissions", summary="Read which models a project may use")
async def get_models(project_id: str, to: AdministrationOf) -> ModelPermissions:
    return ModelPermissions.of(await to.project(project_id))


@router.post("/model_permissions", summary="Set which models a project may use")
async def set_models(
    project_id: str, sent: Sent[SetModelPermissions], runtime: RuntimeOf, to: AdministrationOf
) -> ModelPermissions:
    _check_served(sent.model_ids, runtime)
    names = frozenset(sent.model_ids)
    allowed, denied = (names, frozenset[str]()) if sent.mode == "allow_list" else (None, names)
    return ModelPermissions.of(await to.permit_models(project_id, allowed, denied))


@router.delete("/model_permissions", summary="Let a project use every model")
async def delete_models(project_id: str, to: AdministrationOf) -> ModelPermissionsDeleted:
    await to.permit_models(project_id, None)
    return ModelPermissionsDeleted()


@router.get("/hosted_tool_permissions", summary="Read which hosted tools a project may use")
async def get_tools(project_id: str, runtime: RuntimeOf, to: AdministrationOf) -> ToolPermissions:
    return _tools(await to.project(project_id), runtime)


@router.post("/hosted_tool_permissions", summary="Set which hosted tools a project may use")
async def set_tools(
    project_id: str, sent: Sent[SetToolPermissions], runtime: RuntimeOf, to: AdministrationOf
) -> ToolPermissions:
    wanted = {name: tool.enabled for name, tool in sent if tool is not None}
    return _tools(await to.permit_tools(project_id, wanted, runtime.catalogs.whole.tools), runtime)


def _tools(project: ProjectRow, runtime: Runtime) -> ToolPermissions:
    enabled = enabled_tools(project, runtime.catalogs.whole.tools)
    return ToolPermissions(**{name: ToolEnabled(enabled=is_enabled) for name, is_enabled in enabled.items()})


def _check_served(names: list[str], runtime: Runtime) -> None:
    """Raises InvalidRequest for the first name of no model: a rule with a wrong name would rule nothing."""
    for index, name in enumerate(names):
        if runtime.catalogs.whole.get(name) is None:
            where = f"model_ids[{index}]"
            message = f"Invalid '{where}': there is no model '{shortened(name)}'. 'GET /v1/models' lists the models."
            raise InvalidRequest(message, where, "model_not_found")
