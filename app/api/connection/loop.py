"""The event loop of an API process. Why it is not uvloop's own: docs/internals/decisions/bounds.md."""

from __future__ import annotations

from asyncio import BaseProtocol, Server
from collections.abc import Callable, Sequence
from typing import Any

import uvloop

ACCEPTED_A_TURN = 64
"""Connections that a server accepts in one turn of the loop. libuv accepts one for each listening handle."""


class Loop(uvloop.Loop):
    """uvloop, whose servers listen by ACCEPTED_A_TURN handles on the same socket."""

    async def create_server(self, protocol_factory: Callable[[], BaseProtocol], *args: Any, **options: Any) -> Any:
        servers: list[Any] = [await super().create_server(protocol_factory, *args, **options)]
        for listening in servers[0].sockets:
            for _ in range(ACCEPTED_A_TURN - 1):
                more = {"sock": listening.dup(), "backlog": options["backlog"]}
                servers.append(await super().create_server(protocol_factory, **more))
        return _Servers(servers)


class _Servers:
    """Servers on the same sockets, as one: what uvicorn uses of a server."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self.sockets = servers[0].sockets

    def close(self) -> None:
        for each in self._servers:
            each.close()

    async def wait_closed(self) -> None:
        for each in self._servers:
            await each.wait_closed()
