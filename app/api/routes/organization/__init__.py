"""`/v1/organization`: a subset of OpenAI's admin API."""

from __future__ import annotations

from app.api.routes.organization import (
    admin_api_keys,
    api_keys,
    audit_logs,
    keys,
    limits,
    projects,
    rate_limits,
    service_accounts,
    usage,
)

ROUTERS = (
    projects.router,
    service_accounts.router,
    api_keys.router,
    keys.router,
    projects.permissions,
    rate_limits.router,
    limits.router,
    admin_api_keys.router,
    audit_logs.router,
    usage.router,
)
