"""The outermost layer of the app: request ids, and answers to crashes."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import traceback

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import crash, refuse
from app.protocol.errors import Unavailable

log = logging.getLogger("longhaul.api")

REQUEST_ID = "longhaul.request_id"
"""The key of the request's id in its ASGI scope."""

_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_VALID_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class RequestIdMiddleware:
    """Gives every answer an `x-request-id` (the caller's own, if it sent a valid one), and answers crashes with 500.

    A request that is cancelled because the server stops is answered with 503.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        request_id = scope[REQUEST_ID] = _request_id(scope)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] in _STARTS:
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
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
            log.debug("%s: the client left before its request was complete", request_id)
        except Exception as bug:
            log_crash(bug, scope)
            if not started:
                await refuse(crash())(scope, receive, send_with_id)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1011})


def _request_id(scope: Scope) -> str:
    sent = Headers(scope=scope).get("x-request-id", "")
    return sent if _VALID_ID.fullmatch(sent) else f"req_{secrets.token_hex(16)}"


def log_crash(error: Exception, scope: Scope) -> None:
    """Logs the type of the error and its traceback. Its message may hold a prompt: that is logged at DEBUG only."""
    request_id = scope[REQUEST_ID]
    trace = "".join(traceback.format_tb(error.__traceback__))
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    method = scope.get("method", "WEBSOCKET")
    log.error("%s %s (%s) crashed: %s\n%s", method, scope["path"], request_id, name, trace)
    log.debug("%s: %s", request_id, error)
