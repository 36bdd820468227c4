"""The routes, one module for each resource."""

from __future__ import annotations

from app.api.routes import (
    batches,
    chat,
    conversations,
    files,
    health,
    messages,
    models,
    operator,
    organization,
    responses,
    webhooks,
    websocket,
)

ROUTERS = (
    responses.router,
    websocket.router,
    chat.router,
    messages.router,
    batches.router,
    conversations.router,
    files.router,
    webhooks.router,
    models.router,
    *organization.ROUTERS,
    *operator.ROUTERS,
    health.router,
    health.root,
)
