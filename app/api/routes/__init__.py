"""The routes, one module for each resource."""

from __future__ import annotations

from app.api.routes import chat, conversations, health, models, operator, organization, responses, websocket

ROUTERS = (
    responses.router,
    websocket.router,
    chat.router,
    conversations.router,
    models.router,
    *organization.ROUTERS,
    *operator.ROUTERS,
    health.router,
)
