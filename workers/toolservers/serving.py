"""How a tool server is reached: MCP over streamable HTTP at /mcp, or over stdin and stdout.

A tool server keeps state for each MCP session (a page stack, a kernel), and only the handshake of the protocol's
versions up to 2025-11-25 makes sessions: 2026-07-28 has none. So a server made here speaks the former alone, and tells
clients that try the latter first, which then take the handshake (the SDK's `mode="auto"` does that by itself).

What a tool server binds to beyond this machine wants a bearer token, LONGHAUL_TOOLS_TOKEN.
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
from workers.toolservers.session_reaper import Presence

log = logging.getLogger("longhaul.tools")

TOKEN_VARIABLE = "LONGHAUL_TOOLS_TOKEN"
PATH = "/mcp"
BACKLOG = 512
STOP_SECONDS = 3
"""How long calls that run may go on after SIGTERM."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class ServingError(Exception):
    """A tool server cannot start; the message is one line and names the option or variable."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a tool server listens. `token` is what every request has to bear; None: nothing, on loopback alone."""

    port: int
    """0: any free one; the log says which."""
    host: str = "127.0.0.1"
    token: str | None = None
    idle_seconds: float = 1800.0
    """A session without a request or an open stream for this long is ended."""
    max_sessions: int = 256
    """One more gets a 503."""
    lost_seconds: float = 15.0
    """A session whose client had a stream open that broke, and that asks nothing any more, ends after this long."""


def token_of_environment() -> str | None:
    """LONGHAUL_TOOLS_TOKEN; None where it is unset or empty. Raises ServingError where no header can carry it."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise ServingError(f"{TOKEN_VARIABLE}: must be printable ASCII without spaces")
    return token


def log_to_stderr(level: str) -> None:
    """Logging as in every process of Longhaul; the SDK, which names session ids at INFO, from WARNING on."""
    setup_logging(level)
    if level != "DEBUG":
        for name in ("mcp", "uvicorn.error"):
            logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def connection_of(context: ServerRequestContext[Any, Any]) -> Connection:
    """The MCP session of a request: its `state` dict lives as long as it does, its `exit_stack` unwinds at its end."""
    # The SDK (2.3) means handlers to use both, but has no public name for the way there yet.
    return context.session._connection


async def serve_http(server: Server[Any], endpoint: Endpoint) -> None:
    """Serves until SIGTERM or SIGINT. Raises ServingError where it cannot listen."""
    _require_token_beyond_loopback(endpoint)
    listener = _listen(endpoint)
    app: Asgi = _keeping_sessions(server).streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        session_idle_timeout=endpoint.idle_seconds,
        max_sessions=endpoint.max_sessions,
        transport_security=_transport_security(endpoint),
        host=endpoint.host,
    )
    app = Presence(app, endpoint.lost_seconds)
    if endpoint.token is not None:
        app = _bearing(endpoint.token, app)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=STOP_SECONDS
    )
    log.info("%s tools at %s", server.name, _url_of(listener))
    await uvicorn.Server(config).serve(sockets=[listener])


async def serve_stdio(server: Server[Any]) -> None:
    """Serves one session over stdin and stdout until stdin ends."""
    _keeping_sessions(server)
    async with server.lifespan(server) as state, stdio_server() as (reading, writing):
        await serve_loop(server, reading, writing, lifespan_state=state)


def _keeping_sessions(server: Server[Any]) -> Server[Any]:
    server.middleware.append(_refuse_what_has_no_session)
    return server


async def _refuse_what_has_no_session(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(
            UNSUPPORTED_PROTOCOL_VERSION,
            "This server keeps state for each session: open one with the initialize handshake",
            {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": ctx.protocol_version},
        )
    return await call_next(ctx)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`, an address or a name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require_token_beyond_loopback(endpoint: Endpoint) -> None:
    if endpoint.token is None and not is_loopback(endpoint.host):
        raise ServingError(f"--host {endpoint.host}: is not this machine alone; set {TOKEN_VARIABLE} to a secret first")


def _transport_security(endpoint: Endpoint) -> TransportSecuritySettings:
    """On loopback only requests that name it: a web page must not reach the tools through its visitor's browser."""
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
        listener.listen(BACKLOG)  # now: who reads the address in the log may come at once
    except OSError as error:
        listener.close()
        raise ServingError(f"--host {endpoint.host} --port {endpoint.port}: {error.strerror or error}") from None
    return listener


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


def _bearing(token: str, app: Asgi) -> Asgi:
    """`app` for requests that bear `token`; 401 for all others."""
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
            given: bytes = value
            return given
    return b""


async def _refuse(send: Send) -> None:
    body = f"A bearer token is needed, the one in {TOKEN_VARIABLE}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
