"""Errors as HTTP answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from app.access.changes import AdministrationError, NothingThere
from app.api.rate_limits import RETRY_AFTER_SECONDS, headers_of_error
from app.bounds import BoundReached, ShareReached
from app.messages.errors import error_body, message_status
from app.protocol.errors import (
    ApiError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    RangeNotSatisfiable,
    ServerFault,
    ShareUsed,
    Unavailable,
)
from app.protocol.text import bounded, shortened
from app.protocol.types import Json
from app.store.database import PoolInUse, StatementTimeout, StoreMismatch, StoreUnavailable
from app.streaming.pubsub import PubSubUnavailable

REQUEST_ID = "longhaul.request_id"
"""The key of the request's id in its ASGI scope."""
VERSION_HEADER = b"anthropic-version"
"""Who sends it speaks Anthropic's API."""
REFUSED = "longhaul.refused"
"""The key of the error in the scope of a refused request."""
OK = 200
SERVICE_UNAVAILABLE = 503

MAX_URL_CHARS = 120

_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"www-authenticate": "Bearer"},
    SERVICE_UNAVAILABLE: {"retry-after": str(RETRY_AFTER_SECONDS)},
}
"""Headers that belong to a status."""


def reply(body: Json, status: int = OK, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a JSON answer."""
    return encoded_reply(orjson.dumps(body), status, headers)


def encoded_reply(body: bytes, status: int = OK, headers: Mapping[str, str] | None = None) -> Response:
    """Returns an answer with this JSON."""
    return Response(body, status, headers, media_type="application/json")


def refuse(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """Returns the answer to a refused request."""
    return Refusal(error, {**error_headers(error), **(headers or {})})


def range_refused(size: int) -> Response:
    """Returns the answer to a range that has no byte of a content of `size` bytes."""
    message = f"Invalid 'Range': the content has {size} bytes, and the range none of them."
    return refuse(RangeNotSatisfiable(message, "Range"), {"content-range": f"bytes */{size}"})


class Refusal(Response):
    """An answer in the form of OpenAI's API, or of Anthropic's to who speaks that.

    It leaves its error in the scope, where the outermost middleware counts it.
    """

    def __init__(self, error: ApiError, headers: Mapping[str, str]) -> None:
        super().__init__(b"", error.status, headers)
        self._error = error
        self._more = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REFUSED] = self._error
        status, body, headers = error_answer(self._error, scope)
        await encoded_reply(body, status, {**headers, **self._more})(scope, receive, send)


def error_answer(error: ApiError, scope: Mapping[str, Any]) -> tuple[int, bytes, dict[str, str]]:
    """Returns the status, the body and the form's own headers of an error, in the form of the API that the caller of
    the scope speaks. Of a request that never reaches the app, the scope may have no path and no headers."""
    if not speaks_messages(scope):
        return error.status, orjson.dumps(error.error.body()), {}
    request_id: str | None = scope.get(REQUEST_ID)
    return message_status(error), orjson.dumps(error_body(error, request_id)), request_header(request_id)


def speaks_messages(scope: Mapping[str, Any]) -> bool:
    """Whether the caller speaks Anthropic's API."""
    sent = scope.get("headers", ())
    return scope.get("path", "").startswith("/v1/messages") or any(name == VERSION_HEADER for name, _ in sent)


def request_header(request_id: str | None) -> dict[str, str]:
    """Returns the header in which Anthropic's API names a request."""
    return {} if request_id is None else {"request-id": request_id}


def error_headers(error: ApiError) -> dict[str, str]:
    """Returns the headers of the answer to a refused request, such as how long to wait."""
    return {**_HEADERS.get(error.status, {}), **headers_of_error(error)}


def crash() -> ServerFault:
    """Returns the error for a bug of ours. It says nothing about the bug."""
    return ServerFault("The server had an error while processing your request.")


_TOO_LONG = (
    "A statement of this request took the database too long, and was ended. "
    "Send the request again, or ask for less at once."
)


def api_error_of(error: Exception) -> ApiError | None:
    """Returns the error to answer an exception with, or None if the exception is a bug."""
    if isinstance(error, PoolInUse):
        return Unavailable("Every connection to the database is in use at the moment; send the request again.")
    if isinstance(error, StatementTimeout):
        return Unavailable(_TOO_LONG, code="statement_timeout")
    if isinstance(error, StoreMismatch):
        return crash()
    if isinstance(error, StoreUnavailable):
        return Unavailable("The database cannot be reached at the moment; send the request again.")
    if isinstance(error, PubSubUnavailable):
        return Unavailable("Redis cannot be reached at the moment; send the request again.")
    if isinstance(error, BoundReached):
        return bound_error(error)
    if isinstance(error, AdministrationError):
        return _administration_error(error)
    return error if isinstance(error, ApiError) else None


def bound_error(error: BoundReached) -> ApiError:
    """Returns the error that says which bound was reached, and whether by the project or by all."""
    code = f"too_many_{error.what.lower().replace(' ', '_')}"
    if isinstance(error, ShareReached):
        return ShareUsed(
            f"The caller holds its share of the {error.total} that the server may hold; try again later.", code=code
        )
    return Unavailable(f"The server may hold {error.total} at once, and has no more room; try again later.", code=code)


def _administration_error(error: AdministrationError) -> ApiError:
    text = str(error)
    message = bounded(f"{text[0].upper()}{text[1:]}.")
    if isinstance(error, NothingThere):
        return NotFound(message, error.param)
    return InvalidRequest(message, error.param, "invalid_value")


async def _on_api_error(_: Request, raised: Exception) -> Response:
    error = api_error_of(raised)
    assert error is not None
    return refuse(error)


def unknown_url(method: str, path: str) -> NotFound:
    """Returns the error for a path that no route has."""
    url = shortened(f"{method} {path}", MAX_URL_CHARS)
    return NotFound(f"Invalid URL ({url}). '/docs' lists the routes.", code="unknown_url")


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answers errors of Starlette's router: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code == MethodNotAllowed.status:
        url = shortened(f"{request.method} {request.url.path}", MAX_URL_CHARS)
        allowed = ", ".join(sorted(_allowed(request)))
        message = f"Method not allowed ({url}); the 'allow' header lists the methods."
        return refuse(MethodNotAllowed(message), {"allow": allowed})
    if error.status_code == NotFound.status:
        return refuse(unknown_url(request.method, request.url.path))
    return refuse(InvalidRequest(str(error.detail)), error.headers)


def _allowed(request: Request) -> set[str]:
    """Returns the methods of all routes of this path. Starlette names those of the first route only."""
    routes: list[BaseRoute] = request.app.routes
    matching = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
    return methods | ({"HEAD"} if "GET" in methods else set())


def add_error_handlers(app: FastAPI) -> None:
    """Answers every error as an API does: OpenAI's, or Anthropic's."""
    for kind in (ApiError, AdministrationError, StoreUnavailable, PubSubUnavailable, BoundReached):
        app.add_exception_handler(kind, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
