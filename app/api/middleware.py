"""The outermost layers of the app: request ids and answers to crashes, host names, HEAD, pages of other origins."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
import traceback
from collections.abc import Collection
from functools import partial

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.caller import Caller
from app.aio import run_until
from app.api import rate_limits
from app.api.errors import REFUSED, REQUEST_ID, crash, refuse
from app.api.holdings import known_holdings
from app.metrics.instruments import ApiMetrics
from app.protocol.errors import Forbidden, Misdirected, Unavailable
from app.protocol.text import shortened
from config.hosts import is_allowed_host
from config.logging.context import Subject, about

log = logging.getLogger("longhaul.api")
access_log = logging.getLogger("longhaul.http")
"""One line for each request, and for each message of a WebSocket, at its end. What the line is about has the ids."""

_FOREIGN = "Requests from web pages of this origin are not accepted; 'LONGHAUL_CORS_ORIGINS' lists those that are."
CALLER = "caller"
"""The key of the request's caller in its state."""
CLIENT_LEFT = 499
"""What the log has as the status of a request whose client left before its answer; nginx has the same."""

_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "WEBSOCKET"})
_VALID_ID = re.compile(rb"[\w.:/+=@~-]{1,128}")
_ID_HEADERS = (b"x-request-id", b"x-client-request-id")
"""The second is what OpenAI's API calls a caller's id."""


class RequestIdMiddleware:
    """Gives every answer an `x-request-id` (the caller's own, if it sent a valid one), and answers crashes with 500.

    Lines that are logged meanwhile have the id, and each request is a line at its end.

    `openai-processing-ms` is the time to the start of the answer; that of a stream comes before its first event.
    A request that is cancelled because the server stops is answered with 503.
    """

    def __init__(self, app: ASGIApp, metrics: ApiMetrics | None = None) -> None:
        self._app = app
        self._metrics = metrics or ApiMetrics()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        with about(request_id=_request_id(scope)) as subject:
            scope[REQUEST_ID] = subject.request_id
            await self._answer(subject, scope, receive, send)

    async def _answer(self, subject: Subject, scope: Scope, receive: Receive, send: Send) -> None:
        begun, started, status = time.perf_counter(), False, CLIENT_LEFT
        request_id = (subject.request_id or "").encode()

        async def send_with_id(message: Message) -> None:
            nonlocal started, status
            if message["type"] in _STARTS:
                started, status = True, message.get("status", 101)
                if (holdings := known_holdings(scope)) is not None:
                    holdings.release_body()  # Whatever the answer needs of the request, it is no longer the body.
                spent = time.perf_counter() - begun
                self._count(scope, status, spent)
                ours = (b"x-request-id", request_id), (b"openai-processing-ms", b"%d" % round(1000 * spent))
                message["headers"] = [*message.get("headers", ()), *ours]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # uvicorn cancels what outlives its grace period, and would answer 500 (found by tests/faults).
            if not started and scope["type"] == "http":
                error = Unavailable("The server is stopping; send the request again.")
                await refuse(error)(scope, receive, send_with_id)
            raise
        except ClientDisconnect:
            log.debug("the client left before its request was complete")
        except Exception as bug:
            log_crash(bug, scope)
            if not started:
                await refuse(crash())(scope, receive, send_with_id)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1011})
        finally:
            if (holdings := known_holdings(scope)) is not None:
                holdings.release_body()
                holdings.release_answer()
            note_access(*_method_and_route(scope), status, time.perf_counter() - begun, caller_of(scope))

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        self._metrics.answered(*_method_and_route(scope), status, seconds)
        self._metrics.refused(scope.get(REFUSED))


class HeadMiddleware:
    """Answers HEAD with the headers that GET would have without a range, which is for GET alone (RFC 9110).

    Nothing runs on for a body that nobody gets.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                answered.set()

        asked = {**scope, "method": "GET", "headers": [each for each in scope["headers"] if each[0] != b"range"]}

        async def get() -> None:
            await self._app(asked, receive, send_head)

        await run_until(get(), answered.wait())
        scope["route"] = asked.get("route")


class HostMiddleware:
    """Refuses requests, and WebSockets, for a host name that is not ours (config/hosts.py) with 421.

    The probes of load balancers name whatever host they like, or none, and `/health/` tells a page nothing that is
    worth the trick. Starlette's TrustedHostMiddleware has no such rules, and its refusal does not say what to do.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._answers_to(scope):
            await self._app(scope, receive, send)
        else:
            message = _NOT_OURS.format(shortened(", ".join(_sent(scope, b"host")), MAX_HOST_CHARS))
            await refuse(Misdirected(message, "Host"))(scope, receive, send)

    def _answers_to(self, scope: Scope) -> bool:
        return is_allowed_host(_sent(scope, b"host"), self._allowed) or scope["path"].startswith("/health/")


MAX_HOST_CHARS = 100
_NOT_OURS = "The API does not answer to the host '{}'; 'LONGHAUL_ALLOWED_HOSTS' lists the names that it answers to."


EXPOSED = (
    "openai-poll-after-ms",
    "openai-processing-ms",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "x-longhaul-response",
    "x-request-id",
    *rate_limits.HEADERS,
)
"""Headers of answers that a web page of another origin may read."""

cross_origin = partial(
    CORSMiddleware,
    allow_methods=("DELETE", "GET", "HEAD", "POST"),
    allow_headers=("*",),  # SDKs send headers of their own; a page that is allowed may send any
    expose_headers=EXPOSED,
    allow_private_network=True,
)
"""Starlette's middleware with our rules. No cookies: the API has none."""


def check_origin(scope: Scope, allowed: Collection[str]) -> None:
    """Raises Forbidden for a web page of another origin that is not allowed.

    Browsers ask nobody before they open a WebSocket, or send some POSTs. The header 'Host' is one of ours:
    `HostMiddleware` has seen to that.
    """
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return
    if origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Forbidden(_FOREIGN, code="origin_not_allowed")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name in _ID_HEADERS and _VALID_ID.fullmatch(value):
            return str(value, "ascii")
    # It need not be secret: the kernel's random bytes would be 2 % of what a small request costs.
    return f"req_{random.getrandbits(128):032x}"


def caller_of(scope: Scope) -> Caller | None:
    """The caller of a request; None if it was refused before anybody asked."""
    caller: Caller | None = scope.get("state", {}).get(CALLER)
    return caller


def _method_and_route(scope: Scope) -> tuple[str, str]:
    """The request's labels, each with few values: the path of a request may be anything."""
    method = scope.get("method", "WEBSOCKET")
    return method if method in _METHODS else "other", getattr(scope.get("route"), "path", "other")


def _sent(scope: Scope, name: bytes) -> list[str]:
    """Returns the values of the header. Starlette's `Headers` costs five times as much, in every request."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def switch_access_log(*, on: bool) -> None:
    """Whether access lines are logged; those of probes only at level DEBUG."""
    access_log.setLevel(logging.NOTSET if on else logging.WARNING)


def note_access(
    method: str, route: str, status: int, seconds: float, caller: Caller | None, event: str | None = None
) -> None:
    """A request has ended after so many seconds. `event` is the type of a WebSocket's message.

    The line has no path and no query: a path may be anything, and a query may have a secret in it.
    """
    level = logging.DEBUG if route.startswith("/health/") else logging.INFO
    if not access_log.isEnabledFor(level):
        return
    fields: dict[str, object] = {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1)}
    if event is not None:
        fields["event"] = event
    if caller is not None:
        fields |= {"project": caller.project} if caller.project is not None else {}
        fields |= {"key_id": caller.key_id} if caller.key_id is not None else {}
    # As `log.log` does, but it looks for the line of code that called it, which nobody wants to know here.
    access_log.handle(
        access_log.makeRecord(access_log.name, level, "", 0, "request", (), None, extra={"fields": fields})
    )


def log_crash(error: Exception, scope: Scope) -> None:
    """Logs the type of the error and its traceback. Its message may hold a prompt: that is logged at DEBUG only."""
    trace = "".join(traceback.format_tb(error.__traceback__))
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    method = scope.get("method", "WEBSOCKET")
    log.error("%s %s crashed: %s\n%s", method, scope["path"], name, trace)
    log.debug("%s", error)
