"""`/v1/operator`: what operators see of all projects, and do with their work."""

from __future__ import annotations

from app.api.routes.operator import actions, drains, fleet, pauses, responses, why

ROUTERS = (fleet.router, why.router, drains.router, pauses.router, responses.router, actions.router)
