"""`/v1/operator/responses/{response_id}/why`."""

from __future__ import annotations

from app.api.routes.operator.common import ServiceOf, operator_router
from app.api.routes.operator.objects import Why

router = operator_router("/responses/{response_id}")


@router.get("/why", summary="Say why a response does not run, where it runs, or how it ended")
async def why(response_id: str, service: ServiceOf) -> Why:
    return Why.explained(*await service.why(response_id))
