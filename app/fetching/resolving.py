"""Looks up a name once, so that the address that was checked is the address that is connected to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial

from app.fetching.egress import EgressPolicy
from app.fetching.errors import FetchError, NotAllowed

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Takes host and port; returns addresses, preferred first. Raises OSError."""


async def by_dns(host: str, port: int, threads: Executor | None = None) -> list[str]:
    """The system's resolver, in a thread of these; None: in one of the event loop's."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in await asyncio.get_running_loop().run_in_executor(threads, look_up)]


async def allowed_address(host: str, port: int, egress: EgressPolicy, resolve: Resolve) -> str:
    """The address to connect to for `host`.

    Raises FetchError if it has none, and NotAllowed if any of its addresses is refused: a name with both a public and a
    private address is an attack.
    """
    try:
        addresses = await resolve(host, port)
    except (OSError, UnicodeError):
        addresses = []
    if not addresses:
        raise FetchError(f"There is no host {host}.")
    for address in addresses:
        if not egress.allows(address):
            raise NotAllowed(f"{host} is refused: it has an address that is not public.")
        if not egress.allows_port(address, port):
            ports = " and ".join(str(allowed) for allowed in sorted(egress.ports))
            raise NotAllowed(f"{host} is refused: only its ports {ports} are allowed, not {port}.")
    return addresses[0]
