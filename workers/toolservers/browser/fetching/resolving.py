"""Names to addresses, looked up once: what was checked is what is connected to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.fetching.egress import EgressPolicy

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Host and port to addresses, the preferred first; raises OSError."""


async def by_dns(host: str, port: int) -> list[str]:
    """The system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def checked_address(host: str, port: int, reach: EgressPolicy, resolve: Resolve) -> str:
    """The address to connect to for `host`.

    Raises BrowserError where it has none, or any that must not be reached: a name with a public and a private address
    is one that plays tricks.
    """
    try:
        addresses = await resolve(host, port)
    except (OSError, UnicodeError):
        addresses = []
    if not addresses:
        raise BrowserError(f"There is no host {host}.")
    for address in addresses:
        if not reach.allows(address):
            raise BrowserError(f"{host} is refused: it has an address that is not public.")
        if not reach.allows_port(address, port):
            ports = " and ".join(str(allowed) for allowed in sorted(reach.ports))
            raise BrowserError(f"{host} is refused: pages are opened on port {ports}, not {port}.")
    return addresses[0]
