"""The OpenAPI document: FastAPI's, with our request bodies and errors."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api.authentication import OPEN_PATHS
from app.api.docs.schemas import ErrorBody
from app.api.routes.route import Route
from app.protocol.requests.bodies.compaction import Compact
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.input_tokens import CountTokens
from app.protocol.types import Json

_READ_BY_ROUTES = (CreateResponse, CountTokens, Compact)
"""Request bodies that routes read themselves; those of the others are in their signatures."""

_FASTAPI_ERRORS = ("HTTPValidationError", "ValidationError")
_REF = "#/components/schemas/{model}"
_ERROR = {"application/json": {"schema": {"$ref": _REF.format(model=ErrorBody.__name__)}}}
_CRASH = {"500": {"description": "Internal Server Error", "content": _ERROR}}
_REFUSED = {
    "401": {"description": "Unauthorized, if the server asks for API keys", "content": _ERROR},
    "403": {"description": "Forbidden: the API key does not allow it", "content": _ERROR},
}


def document(app: FastAPI) -> Json:
    """Returns the document. It is made once per app."""
    if app.openapi_schema is None:
        bodies = [route.body.model for route in app.routes if isinstance(route, Route) and route.body is not None]
        app.openapi_schema = _with_our_errors(_with_requests(_generated(app), (*_READ_BY_ROUTES, *bodies)))
    return app.openapi_schema


def _generated(app: FastAPI) -> Json:
    return get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )


def _with_requests(schema: Json, bodies: Iterable[type[BaseModel]]) -> Json:
    """Adds the request bodies. A schema of theirs whose name an answer has too gets `Param` behind its name."""
    schemas = schema["components"]["schemas"]
    _, made = models_json_schema([(model, "validation") for model in bodies], ref_template=_REF)
    encoded = orjson.dumps(made["$defs"])
    for name in made["$defs"].keys() & schemas.keys():
        encoded = encoded.replace(_quoted(name), _quoted(f"{name}Param"))
    parts = orjson.loads(encoded)
    schemas |= {f"{name}Param" if name in schemas else name: part for name, part in parts.items()}
    return schema


def _quoted(name: str) -> bytes:
    return orjson.dumps(_REF.format(model=name))


def _with_our_errors(schema: Json) -> Json:
    """Removes FastAPI's 422, which no route answers, and adds the errors that every route may answer."""
    for name, path in schema["paths"].items():
        own = _CRASH if name in OPEN_PATHS else {**_REFUSED, **_CRASH}
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"] = {**own, **operation["responses"]}
    for name in _FASTAPI_ERRORS:
        schema["components"]["schemas"].pop(name, None)
    return schema
