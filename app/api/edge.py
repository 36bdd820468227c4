"""The outermost layer of the app: request ids, and what is left of a crash."""

from __future__ import annotations

import logging
import re
import secrets
import traceback

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import crashed

log = logging.getLogger("longhaul.api")

_SANE_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class Edge:
    """Gives every answer an `x-request-id` (the caller's own where it sent a sane one), and answers crashes with 500.

    The log gets the crash's type and place but not its message, which may hold a prompt.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = _request_id(scope)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            log.debug("%s: the client left before its request was complete", request_id)
        except Exception as error:
            _log_crash(error, scope, request_id)
            if not started:
                await crashed()(scope, receive, send_with_id)


def _request_id(scope: Scope) -> str:
    sent = Headers(scope=scope).get("x-request-id", "")
    return sent if _SANE_ID.fullmatch(sent) else f"req_{secrets.token_hex(16)}"


def _log_crash(error: Exception, scope: Scope, request_id: str) -> None:
    place = "".join(traceback.format_tb(error.__traceback__))
    what = f"{type(error).__module__}.{type(error).__qualname__}"
    log.error("%s %s (%s) crashed: %s\n%s", scope["method"], scope["path"], request_id, what, place)
    log.debug("%s: %s", request_id, error)
