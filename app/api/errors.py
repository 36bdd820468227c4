"""Errors as HTTP answers: the only module that knows status codes."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from app.access.changes import AdministrationError, NothingThere
from app.api.rate_limits import headers_of_error
from app.budget import OverBudget
from app.protocol.errors import (
    ApiError,
    Forbidden,
    HeadTooLarge,
    InvalidRequest,
    LimitReached,
    MethodNotAllowed,
    Misdirected,
    NotFound,
    RequestTimeout,
    ServerFault,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnsupportedMedia,
    UrlTooLong,
)
from app.protocol.text import shortened
from app.protocol.types import Json
from app.store.database import StoreUnavailable
from app.streaming.pubsub import PubSubUnavailable

OK = 200
SERVICE_UNAVAILABLE = 503

RETRY_AFTER_SECONDS = 1
MAX_URL_CHARS = 120

_STATUS: dict[type[ApiError], int] = {
    InvalidRequest: 400,
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    MethodNotAllowed: 405,
    RequestTimeout: 408,
    TooLarge: 413,
    UrlTooLong: 414,
    UnsupportedMedia: 415,
    Misdirected: 421,
    LimitReached: 429,
    HeadTooLarge: 431,
    ServerFault: 500,
    Unavailable: SERVICE_UNAVAILABLE,
    TimedOut: 504,
}


_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"www-authenticate": "Bearer"},
    SERVICE_UNAVAILABLE: {"retry-after": str(RETRY_AFTER_SECONDS)},
}
"""Headers that belong to a status."""


def status_of(error: ApiError) -> int:
    """Returns the HTTP status of the error's class, or of its nearest base class."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def reply(body: Json, status: int = OK, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a JSON answer."""
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def refuse(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """Returns the answer to a refused request."""
    status = status_of(error)
    return reply(error.error.body(), status, {**_HEADERS.get(status, {}), **headers_of_error(error), **(headers or {})})


def crash() -> ServerFault:
    """Returns the error for a bug of ours. It says nothing about the bug."""
    return ServerFault("The server had an error while processing your request.")


def api_error_of(error: Exception) -> ApiError | None:
    """Returns the error to answer an exception with, or None if the exception is a bug."""
    if isinstance(error, StoreUnavailable):
        return Unavailable("The database cannot be reached at the moment; send the request again.")
    if isinstance(error, PubSubUnavailable):
        return Unavailable("Redis cannot be reached at the moment; send the request again.")
    if isinstance(error, OverBudget):
        message = "The server holds as many large requests as it may; send the request again."
        return Unavailable(message, code="too_many_large_requests")
    if isinstance(error, AdministrationError):
        return _administration_error(error)
    return error if isinstance(error, ApiError) else None


def _administration_error(error: AdministrationError) -> ApiError:
    text = str(error)
    message = f"{text[0].upper()}{text[1:]}."
    if isinstance(error, NothingThere):
        return NotFound(message, error.param)
    return InvalidRequest(message, error.param, "invalid_value")


async def _on_api_error(_: Request, raised: Exception) -> Response:
    error = api_error_of(raised)
    assert error is not None
    return refuse(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answers errors of Starlette's router: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    url = shortened(f"{request.method} {request.url.path}", MAX_URL_CHARS)
    if error.status_code == _STATUS[MethodNotAllowed]:
        allowed = ", ".join(sorted(_allowed(request)))
        message = f"Method not allowed ({url}); the 'allow' header lists the methods."
        return refuse(MethodNotAllowed(message), {"allow": allowed})
    if error.status_code == _STATUS[NotFound]:
        return refuse(NotFound(f"Invalid URL ({url}). '/docs' lists the routes.", code="unknown_url"))
    return reply(InvalidRequest(str(error.detail)).error.body(), error.status_code, error.headers)


def _allowed(request: Request) -> set[str]:
    """Returns the methods of all routes of this path. Starlette names those of the first route only."""
    routes: list[BaseRoute] = request.app.routes
    matching = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
    return methods | ({"HEAD"} if "GET" in methods else set())


def add_error_handlers(app: FastAPI) -> None:
    """Answers every error in the form of OpenAI's API."""
    for kind in (ApiError, AdministrationError, StoreUnavailable, PubSubUnavailable, OverBudget):
        app.add_exception_handler(kind, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
