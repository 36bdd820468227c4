"""The OpenAPI document: FastAPI's, with our errors."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.api.authentication import OPEN_PATHS
from app.api.docs.schemas import ErrorBody
from app.protocol.types import Json

_FASTAPI_ERRORS = ("HTTPValidationError", "ValidationError")
_ERROR = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorBody.__name__}"}}}
_CRASH = {"500": {"description": "Internal Server Error", "content": _ERROR}}
_REFUSED = {
    "401": {"description": "Unauthorized, if the server asks for API keys", "content": _ERROR},
    "403": {"description": "Forbidden: the API key does not allow it", "content": _ERROR},
}


def document(app: FastAPI) -> Json:
    """Returns the document. It is made once per app."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
        )
        app.openapi_schema = _with_our_errors(made)
    return app.openapi_schema


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
