"""Finds a free TCP port, and checks a given one, so that a port in use gives one line and no traceback."""

from __future__ import annotations

import errno
import secrets
import socket
from http.client import HTTPConnection, HTTPException

from app.local.errors import LocalError
from config.hosts import in_url
from config.settings import ConfigError, Settings

HOST = "127.0.0.1"
FIRST, END = 10_000, 30_000
"""Below the ports that Linux assigns by itself (net.ipv4.ip_local_port_range, from 32768 on): so the kernel gives
a port that was found free to no other program before it is used."""
TRIES = 1000

_REASONS = {
    errno.EADDRINUSE: "is already in use",
    errno.EACCES: "may not be used by this user",
    errno.EADDRNOTAVAIL: "is not an address of this machine",
}


def check_port(variable: str, host: str, port: int) -> None:
    """Raises ConfigError, one line, if no program could listen on host and port now.

    It names `variable`, which sets the port, or the one beside it that sets the host.
    """
    host_variable = f"{variable.removesuffix('PORT')}HOST"
    if port > 65535:
        raise ConfigError(f"{variable}: there is no port {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise ConfigError(f"{host_variable}: {host!r} is no address of this machine") from None
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        name = host_variable if error.errno == errno.EADDRNOTAVAIL else variable
        subject = host if error.errno == errno.EADDRNOTAVAIL else f"port {port} of {host}"
        raise ConfigError(f"{name}: {subject} {_REASONS.get(error.errno or 0, error.strerror)}") from None


def local_host(host: str) -> str:
    """The address by which this machine reaches what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def api_url(settings: Settings) -> str:
    """The URL by which this machine reaches an API with these settings."""
    return url_of(settings.host, settings.port)


def url_of(host: str, port: int) -> str:
    """The URL by which this machine reaches what listens on host and port."""
    return f"http://{in_url(local_host(host))}:{port}"


def probe(host: str, port: int, path: str, seconds: float, token: str | None = None) -> tuple[int, bytes] | None:
    """Gets a path of what listens on host and port; returns the status and the body.

    None: nothing answers within so many seconds, or it speaks no HTTP.
    """
    connection = HTTPConnection(local_host(host), port, timeout=seconds)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def free_port() -> int:
    """A port of HOST that is free now. Raises LocalError if none is found."""
    for _ in range(TRIES):
        port = FIRST + secrets.randbelow(END - FIRST)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise LocalError(f"no free port of {HOST} was found between {FIRST} and {END}")
