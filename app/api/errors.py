"""Errors as HTTP: the only place that knows status codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from app.protocol.errors import (
    ApiError,
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    ServerFault,
    TimedOut,
    TooLarge,
    Unavailable,
    UnsupportedMedia,
)
from app.protocol.text import shortened
from app.store.database import StoreUnavailable
from app.streaming.pubsub import PubSubUnavailable

NOT_READY = 503
"""What `GET /health/ready` says while something is missing."""

RETRY_AFTER_SECONDS = 1

_STATUS: dict[type[ApiError], int] = {
    InvalidRequest: 400,
    Forbidden: 403,
    NotFound: 404,
    MethodNotAllowed: 405,
    TooLarge: 413,
    UnsupportedMedia: 415,
    ServerFault: 500,
    Unavailable: 503,
    TimedOut: 504,
}


def status_of(refusal: ApiError) -> int:
    """The HTTP status of an error: its class's, or that of the nearest base."""
    return next(_STATUS[kind] for kind in type(refusal).__mro__ if kind in _STATUS)


def reply(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response with this body."""
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def refuse(refusal: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that is refused."""
    status = status_of(refusal)
    retry = {"retry-after": str(RETRY_AFTER_SECONDS)} if status == NOT_READY else {}
    return reply(refusal.error.body(), status, {**retry, **(headers or {})})


def crash() -> ServerFault:
    """What a request is told that met a bug of ours: nothing about it."""
    return ServerFault("The server had an error while processing your request.")


def refusal_of(error: Exception) -> ApiError | None:
    """What to tell a request about what it raised; None: it is a bug."""
    if isinstance(error, StoreUnavailable):
        return Unavailable("The database cannot be reached at the moment; try again.")
    if isinstance(error, PubSubUnavailable):
        return Unavailable("Redis cannot be reached at the moment; try again.")
    return error if isinstance(error, ApiError) else None


async def _on_refusal(_: Request, error: Exception) -> Response:
    refusal = refusal_of(error)
    assert refusal is not None
    return refuse(refusal)


async def _on_validation(_: Request, error: Exception) -> Response:
    """For routes that let FastAPI read parameters; none does today."""
    assert isinstance(error, RequestValidationError)
    where = ".".join(str(step) for step in error.errors()[0]["loc"][1:])
    return refuse(InvalidRequest(f"Invalid value for '{where}'.", where or None, "invalid_value"))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, wrong method."""
    assert isinstance(error, HTTPException)
    url = shortened(f"{request.method} {request.url.path}", 120)
    if error.status_code == _STATUS[MethodNotAllowed]:
        allowed = ", ".join(sorted(_allowed(request)))
        return refuse(MethodNotAllowed(f"Method not allowed ({url})."), {"allow": allowed})
    if error.status_code == _STATUS[NotFound]:
        return refuse(NotFound(f"Invalid URL ({url}).", code="unknown_url"))
    return reply(InvalidRequest(str(error.detail)).error.body(), error.status_code, error.headers)


def _allowed(request: Request) -> set[str]:
    """The methods of every route of this path (Starlette names those of the first one only)."""
    routes: list[BaseRoute] = request.app.routes
    matching = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in matching for method in getattr(route, "methods", None) or ()}


def add_error_handlers(app: FastAPI) -> None:
    """Every error that leaves a route, in the shape of OpenAI's API."""
    for kind in (ApiError, StoreUnavailable, PubSubUnavailable):
        app.add_exception_handler(kind, _on_refusal)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http_exception)
