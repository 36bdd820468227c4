"""Looks up a name once, so that the address that was checked is the address that is connected to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from workers.toolservers.browser.errors import BrowserError
from workers.toolservers.browser.fetching.egress import EgressPolicy

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Takes host and port; returns addresses, preferred first. Raises OSError."""


async def by_dns(host: str, port: int) -> list[str]:
    """The system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def checked_address(host: str, port: int, egress: EgressPolicy, resolve: Resolve) -> str:
    """The address to connect to for `host`.

    Raises BrowserError if it has none, or if any of its addresses is refused: a name with both a public and a private
    address is an attack.
    """
    try:
        addresses = await resolve(host, port)
    except (OSError, UnicodeError):
        addresses = []
    if not addresses:
        raise BrowserError(f"There is no host {host}.")
    for address in addresses:
        if not egress.allows(address):
            raise BrowserError(f"{host} is refused: it has an address that is not public.")
        if not egress.allows_port(address, port):
            ports = " and ".join(str(allowed) for allowed in sorted(egress.ports))
            raise BrowserError(f"{host} is refused: pages are opened on port {ports}, not {port}.")
    return addresses[0]
