"""The OpenAPI document: FastAPI's, with the request body that we read ourselves."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from app.api.schemas import ErrorBody
from app.protocol.requests.compaction import Compact
from app.protocol.requests.conversation import CreateConversation, CreateItems, UpdateConversation
from app.protocol.requests.create_response import CreateResponse
from app.protocol.requests.input_tokens import CountTokens

BODIES = (CreateResponse, CountTokens, Compact, CreateConversation, UpdateConversation, CreateItems)
"""The requests that we read ourselves."""

_FASTAPI_ERRORS = ("HTTPValidationError", "ValidationError")
_REF = "#/components/schemas/{model}"
_CRASH = {
    "description": "Internal Server Error",
    "content": {"application/json": {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}},
}


def document(app: FastAPI) -> dict[str, Any]:
    """Made once per app, then kept."""
    if app.openapi_schema is None:
        app.openapi_schema = _with_our_errors(_with_requests(_generated(app)))
    return app.openapi_schema


def _generated(app: FastAPI) -> dict[str, Any]:
    return get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )


def _with_requests(schema: dict[str, Any]) -> dict[str, Any]:
    """Parts of requests whose name a part of an answer has, too, get another one."""
    known = schema["components"]["schemas"]
    _, made = models_json_schema([(model, "validation") for model in BODIES], ref_template=_REF)
    encoded = orjson.dumps(made["$defs"])
    for name in made["$defs"].keys() & known.keys():
        encoded = encoded.replace(_quoted(name), _quoted(f"{name}Param"))
    parts = orjson.loads(encoded)
    known |= {f"{name}Param" if name in known else name: part for name, part in parts.items()}
    return schema


def _quoted(name: str) -> bytes:
    return orjson.dumps(_REF.format(model=name))


def _with_our_errors(schema: dict[str, Any]) -> dict[str, Any]:
    """FastAPI documents a 422 for every route with a parameter; ours never answer so. All can meet a bug of ours."""
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"].setdefault("500", _CRASH)
    for name in _FASTAPI_ERRORS:
        schema["components"]["schemas"].pop(name, None)
    return schema
