"""Serves MCP over streamable HTTP at /mcp, or over stdin and stdout.

The servers here keep state for each MCP session (a page stack, an interpreter). The protocol has sessions up to version
2025-11-25, and none in 2026-07-28, so these servers refuse the newer version. A client that tried it first then uses
the older handshake, as the SDK's `mode="auto"` does by itself.

An address that other machines can reach requires a bearer token, LONGHAUL_TOOLS_TOKEN.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import uvicorn
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from config.hosts import in_url
from config.logging import setup_logging
from workers.toolservers.settings import (
    TOKEN_VARIABLE,
    ServerSettings,
    StartError,
    load,
    token_of_environment,
)

log = logging.getLogger("longhaul.tools")

PATH = "/mcp"
BACKLOG = 512
STOP_SECONDS = 3
"""Seconds that running calls may go on after SIGTERM."""
INTERRUPTED = 130

_STATE = "longhaul"

Chosen = TypeVar("Chosen", bound=ServerSettings)
State = TypeVar("State")


def run(kind: type[Chosen], serve: Callable[[Chosen], Coroutine[Any, Any, None]]) -> int:
    """Reads the options and runs the program; returns its exit status: 78 if it cannot start."""
    try:
        settings = load(kind, sys.argv[1:])
        _log_to_stderr(settings.log_level, str(kind.model_config.get("cli_prog_name")))
        asyncio.run(serve(settings))
    except StartError as error:
        sys.stderr.write(f"{kind.model_config.get('cli_prog_name')}: {error}\n")
        return os.EX_CONFIG
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _log_to_stderr(level: str, program: str) -> None:
    """Sets up logging as in every Longhaul process. The SDK logs session ids at INFO, so it starts at WARNING."""
    setup_logging(level, os.environ.get("LONGHAUL_LOG_FORMAT", "text"), program)
    if level != "DEBUG":
        for name in ("mcp", "uvicorn.error"):
            logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def state_of(context: ServerRequestContext[Any, Any], make: Callable[[AsyncExitStack], State]) -> State:
    """The state of a request's MCP session. Its first request makes it; the exit stack is closed with the session."""
    # The SDK (2.3) documents these for handlers, but has no public attribute that leads to the connection.
    connection = context.session._connection
    if _STATE not in connection.state:
        connection.exit_stack.callback(connection.state.clear)
        connection.state[_STATE] = make(connection.exit_stack)
    state: State = connection.state[_STATE]
    return state


async def serve(server: Server[Any], settings: ServerSettings, max_sessions: int) -> None:
    """Serves until SIGTERM, SIGINT or the end of stdin. Raises StartError if it cannot listen.

    Over HTTP, one session more than `max_sessions` gets a 503.
    """
    require_sessions(server)
    if settings.stdio:
        async with server.lifespan(server) as state, stdio_server() as (reading, writing):
            await serve_loop(server, reading, writing, lifespan_state=state)
    else:
        await _serve_http(server, settings, max_sessions)


async def _serve_http(server: Server[Any], settings: ServerSettings, max_sessions: int) -> None:
    listener = _listen(settings.host, settings.port)
    app: ASGIApp = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        session_idle_timeout=settings.idle_seconds,
        max_sessions=max_sessions,
        host=settings.host,
    )
    token = token_of_environment()
    if token is not None:
        app = _require_token(token, app)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=STOP_SECONDS
    )
    log.info("%s tools at %s", server.name, _url_of(listener))
    await uvicorn.Server(config).serve(sockets=[listener])


def require_sessions(server: Server[Any]) -> None:
    """Makes `server` refuse the protocol versions that have no sessions."""
    server.middleware.append(_refuse_versions_without_sessions)


async def _refuse_versions_without_sessions(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(
            UNSUPPORTED_PROTOCOL_VERSION,
            "This server keeps state for each session: open one with the initialize handshake",
            {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": ctx.protocol_version},
        )
    return await call_next(ctx)


def _listen(host: str, port: int) -> socket.socket:
    """Listens before the log names the address: a client may connect at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6
        )
    except OSError as error:
        raise StartError(f"--host {host} --port {port}: {error.strerror or error}") from None


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{in_url(host)}:{port}{PATH}"


def _require_token(token: str, app: ASGIApp) -> ASGIApp:
    """`app` for requests with the bearer token; 401 for all others."""
    expected = f"Bearer {token}".encode()
    refusal = PlainTextResponse(
        f"A bearer token is required: the value of {TOKEN_VARIABLE}\n", 401, {"www-authenticate": "Bearer"}
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        allowed = scope["type"] != "http" or hmac.compare_digest(
            Headers(scope=scope).get("authorization", "").encode(), expected
        )
        await (app if allowed else refusal)(scope, receive, send)

    return guarded
