"""Serves MCP over streamable HTTP at /mcp, or over stdin and stdout.

The servers here keep state for each MCP session (a page stack, an interpreter). The protocol has sessions up to version
2025-11-25, and none in 2026-07-28, so these servers refuse the newer version. A client that tried it first then uses
the older handshake, as the SDK's `mode="auto"` does by itself.

An address that other machines can reach requires a bearer token, LONGHAUL_TOOLS_TOKEN.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from config.logging import setup_logging
from workers.toolservers.session_reaper import SessionReaper

log = logging.getLogger("longhaul.tools")

TOKEN_VARIABLE = "LONGHAUL_TOOLS_TOKEN"
PATH = "/mcp"
BACKLOG = 512
STOP_SECONDS = 3
"""Seconds that running calls may go on after SIGTERM."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class ServingError(Exception):
    """The server cannot start. The message is one line and names the option or variable."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server listens, and for whom. Durations are in seconds."""

    port: int
    """0: any free port; the log names it."""
    host: str = "127.0.0.1"
    token: str | None = None
    """The bearer token that every request needs; None: no token, on loopback addresses alone."""
    idle_seconds: float = 1800.0
    """A session ends after this long without a request or an open stream."""
    max_sessions: int = 256
    """Open sessions; one more gets a 503."""
    lost_seconds: float = 15.0
    """A session ends this long after its client's stream broke, if no request follows."""


def token_of_environment() -> str | None:
    """LONGHAUL_TOOLS_TOKEN; None if it is unset or empty. Raises ServingError if it does not fit into a header."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise ServingError(f"{TOKEN_VARIABLE}: must be printable ASCII without spaces")
    return token


def log_to_stderr(level: str) -> None:
    """Sets up logging as in every Longhaul process. The SDK logs session ids at INFO, so it starts at WARNING."""
    setup_logging(level)
    if level != "DEBUG":
        for name in ("mcp", "uvicorn.error"):
            logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def connection_of(context: ServerRequestContext[Any, Any]) -> Connection:
    """The connection of a request's MCP session. Its `state` and its `exit_stack` last as long as the session."""
    # The SDK (2.3) documents both for handlers, but has no public attribute that leads to them.
    return context.session._connection


async def serve_http(server: Server[Any], endpoint: Endpoint) -> None:
    """Serves until SIGTERM or SIGINT. Raises ServingError if it cannot listen."""
    _require_token_beyond_loopback(endpoint)
    listener = _listen(endpoint)
    app: Asgi = _require_sessions(server).streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        session_idle_timeout=endpoint.idle_seconds,
        max_sessions=endpoint.max_sessions,
        transport_security=_transport_security(endpoint),
        host=endpoint.host,
    )
    app = SessionReaper(app, endpoint.lost_seconds)
    if endpoint.token is not None:
        app = _require_token(endpoint.token, app)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=STOP_SECONDS
    )
    log.info("%s tools at %s", server.name, _url_of(listener))
    await uvicorn.Server(config).serve(sockets=[listener])


async def serve_stdio(server: Server[Any]) -> None:
    """Serves one session over stdin and stdout until stdin ends."""
    _require_sessions(server)
    async with server.lifespan(server) as state, stdio_server() as (reading, writing):
        await serve_loop(server, reading, writing, lifespan_state=state)


def _require_sessions(server: Server[Any]) -> Server[Any]:
    server.middleware.append(_refuse_versions_without_sessions)
    return server


async def _refuse_versions_without_sessions(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(
            UNSUPPORTED_PROTOCOL_VERSION,
            "This server keeps state for each session: open one with the initialize handshake",
            {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": ctx.protocol_version},
        )
    return await call_next(ctx)


def is_loopback(host: str) -> bool:
    """Whether `host`, an address or a name, can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require_token_beyond_loopback(endpoint: Endpoint) -> None:
    if endpoint.token is None and not is_loopback(endpoint.host):
        raise ServingError(
            f"--host {endpoint.host}: other machines can reach it; set {TOKEN_VARIABLE} to a secret first"
        )


def _transport_security(endpoint: Endpoint) -> TransportSecuritySettings:
    """On loopback, a request must name it as host and origin: a web page in a browser here must not reach the tools."""
    if not is_loopback(endpoint.host):
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the token protects
    hosts = {"127.0.0.1", "localhost", "[::1]", f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host}
    names = [name for host in sorted(hosts) for name in (host, f"{host}:*")]
    return TransportSecuritySettings(allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names])


def _listen(endpoint: Endpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((endpoint.host, endpoint.port))
        listener.listen(BACKLOG)  # before the log names the address: a client may connect at once
    except OSError as error:
        listener.close()
        raise ServingError(f"--host {endpoint.host} --port {endpoint.port}: {error.strerror or error}") from None
    return listener


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


def _require_token(token: str, app: Asgi) -> Asgi:
    """`app` for requests with the bearer token; 401 for all others."""
    expected = f"Bearer {token}".encode("ascii")

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not hmac.compare_digest(_authorization(scope), expected):
            await _refuse(send)
        else:
            await app(scope, receive, send)

    return guarded


def _authorization(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            authorization: bytes = value
            return authorization
    return b""


async def _refuse(send: Send) -> None:
    body = f"A bearer token is required: the value of {TOKEN_VARIABLE}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
