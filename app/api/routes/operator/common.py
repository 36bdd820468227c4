"""What the operators' routes share: how their routers are made, and the service behind them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from app.api.dependencies import RuntimeOf
from app.api.routes.route import Route
from app.operations.service import OperatorService


def operator_router(path: str = "") -> APIRouter:
    """Returns a router for the routes below `/v1/operator{path}`."""
    return APIRouter(prefix=f"/v1/operator{path}", tags=["operator"], route_class=Route)


async def service_of(runtime: RuntimeOf) -> OperatorService:
    models = {model.queue: model.name for model in runtime.catalogs.whole.models}
    return OperatorService(runtime.db, runtime.pubsub, models, runtime.settings.event_retention_seconds)


ServiceOf = Annotated[OperatorService, Depends(service_of)]
