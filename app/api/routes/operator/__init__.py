"""`/v1/operator`: what operators see of all projects, and do with their work."""

from __future__ import annotations

from app.api.routes.operator import actions, fleet, pauses, responses

ROUTERS = (fleet.router, responses.explanations, fleet.workers, pauses.router, responses.router, actions.router)
