"""The routes, one module for each resource."""

from __future__ import annotations

from app.api.routes import batches, chat, conversations, health, models, organization, responses, websocket

ROUTERS = (
    responses.router,
    websocket.router,
    chat.router,
    batches.router,
    conversations.router,
    models.router,
    *organization.ROUTERS,
    health.router,
)
