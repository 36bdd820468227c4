"""Whether a port can be listened on, asked before a program that would say it with a traceback."""

from __future__ import annotations

import errno
import socket

from config.settings import ConfigError

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
