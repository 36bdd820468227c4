"""The OpenAPI document: FastAPI's, with the request body that we read ourselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.protocol.conversation import CreateConversation, CreateItems, UpdateConversation
from app.protocol.derived import Compact, CountTokens
from app.protocol.request import CreateResponse

BODIES = (CreateResponse, CountTokens, Compact, CreateConversation, UpdateConversation, CreateItems)
"""The requests that we read ourselves."""

_FASTAPI_ERRORS = ("HTTPValidationError", "ValidationError")


def document(app: FastAPI) -> dict[str, Any]:
    """Made once per app, then kept."""
    if app.openapi_schema is None:
        app.openapi_schema = _without_422(_with_request(_generated(app)))
    return app.openapi_schema


def _generated(app: FastAPI) -> dict[str, Any]:
    return get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )


def _with_request(schema: dict[str, Any]) -> dict[str, Any]:
    for model in BODIES:
        shape = model.model_json_schema(ref_template="#/components/schemas/{model}")
        parts = shape.pop("$defs", {})
        schema["components"]["schemas"] |= {**parts, model.__name__: shape}
    return schema


def _without_422(schema: dict[str, Any]) -> dict[str, Any]:
    """FastAPI documents a 422 for every route with a parameter; ours never answer so."""
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in _FASTAPI_ERRORS:
        schema["components"]["schemas"].pop(name, None)
    return schema
