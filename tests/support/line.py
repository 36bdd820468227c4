"""A line between a client and an installation, on which a test listens."""

from __future__ import annotations

import asyncio

from tests.faults.proxy import Proxy
from tests.support.longhaul import Longhaul


class Line:
    """The proxy between a client and the API: what both sent, and when the connection is cut."""

    def __init__(self, installation: Longhaul) -> None:
        self._proxy = Proxy(lambda: asyncio.open_connection("127.0.0.1", installation.port), self._watch)
        self.sent = self.received = b""
        self.cuts = 0
        self.cut_at: bytes | None = None
        """Cuts every connection when the API says this, once."""

    async def start(self) -> None:
        await self._proxy.start()

    async def close(self) -> None:
        await self._proxy.close()

    @property
    def url(self) -> str:
        """The API's URL, with `/v1`."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._proxy.port}"

    def _watch(self, piece: bytes, to_client: bool) -> None:
        if not to_client:
            self.sent += piece
            return
        self.received += piece
        if self.cut_at and self.cut_at in piece:
            self.cut_at = None
            self.cuts += 1
            self._proxy.reset()
