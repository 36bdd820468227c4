"""`/v1/organization/projects/{id}/limits`: Longhaul's own, all limits of a project with what is taken of them."""

from __future__ import annotations

from app.api.admin_objects import Limits, ProjectLimit
from app.api.dependencies import Runtime, RuntimeOf
from app.api.routes.organization.common import AdministrationOf, organization_router
from app.api.routes.route import Sent
from app.protocol.requests.bodies.organization import SetLimit
from app.store.tenants import limits

router = organization_router("projects/{project_id}/limits")


@router.get("", summary="List all limits of a project")
async def list_limits(project_id: str, runtime: RuntimeOf, to: AdministrationOf) -> Limits:
    await to.project(project_id)
    return await _limits(project_id, runtime)


@router.post("", summary="Set or remove a limit of a project", description="Answers with all that it has then.")
async def set_limit(project_id: str, sent: Sent[SetLimit], runtime: RuntimeOf, to: AdministrationOf) -> Limits:
    await to.set_limits(project_id, sent.model, {sent.kind: sent.value})
    return await _limits(project_id, runtime)


async def _limits(project_id: str, runtime: Runtime) -> Limits:
    return Limits(data=[ProjectLimit.of(state) for state in await limits.states(runtime.db, project_id)])
