"""TCP ports: one that is free, and whether a given one is: asked before a program would say it with a traceback."""

from __future__ import annotations

import errno
import secrets
import socket

from app.local.errors import LocalError
from config.settings import ConfigError

HOST = "127.0.0.1"
FIRST, END = 10_000, 30_000
"""Below what Linux gives to who asks for any port (net.ipv4.ip_local_port_range, from 32768 on): one that was found
free is given to no client and no other server before it is used."""
TRIES = 1000

_REASONS = {
    errno.EADDRINUSE: "is already in use",
    errno.EACCES: "may not be used by this user",
    errno.EADDRNOTAVAIL: "is not an address of this machine",
}


def check_port(variable: str, host: str, port: int) -> None:
    """Raises ConfigError, one line that names `variable`, where nobody could listen on host and port now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise ConfigError(f"LONGHAUL_HOST: {host!r} is no address of this machine") from None
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        name = "LONGHAUL_HOST" if error.errno == errno.EADDRNOTAVAIL else variable
        what = host if error.errno == errno.EADDRNOTAVAIL else f"port {port} of {host}"
        raise ConfigError(f"{name}: {what} {_REASONS.get(error.errno or 0, error.strerror)}") from None


def free_port() -> int:
    """A port of HOST that nobody uses now. Raises LocalError where none is found."""
    for _ in range(TRIES):
        port = FIRST + secrets.randbelow(END - FIRST)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise LocalError(f"no free port of {HOST} was found between {FIRST} and {END}")
