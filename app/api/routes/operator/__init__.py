"""`/v1/operator`: what operators see of all projects, and do with their work."""

from __future__ import annotations

from app.api.routes.operator import fleet

ROUTERS = (fleet.router,)
