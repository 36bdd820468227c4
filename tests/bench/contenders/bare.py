"""Bare vLLM: `AsyncLLM.generate` in one process and no server at all. What no server can be faster than."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from config.settings import CHECKOUT
from tests.bench.asked import LONGEST_LINE, ClientFailed, Go
from tests.bench.contenders.base import Contender
from tests.bench.contenders.models import Served
from tests.bench.load import Figures, Load, Mode
from tests.bench.processes import Role


class Bare(Contender):
    modes = frozenset({Mode.STREAM})

    def __init__(self, name: str, folder: Path, served: Served) -> None:
        super().__init__(name, folder)
        self._models = folder / f"{name}.toml"
        served.write(self._models)
        self._socket = folder / f"{name}.sock"

    async def start(self) -> None:
        argv = (sys.executable, "-m", "tests.bench.contenders.bare_engine", str(self._models), str(self._socket))
        await self.launch(Role.API, argv, {"VLLM_LOGGING_LEVEL": "WARNING"}, CHECKOUT)
        await self.ready(Role.API, self._socket.exists)

    @asynccontextmanager
    async def client(self, load: Load) -> AsyncIterator[Go]:
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=LONGEST_LINE)

        async def line() -> bytes:
            if not (said := await reader.readline()):
                raise ClientFailed(f"{self.name} ended (see {self.log})")
            return said

        async def go() -> Figures:
            writer.write(b"go\n")
            return Figures.decode(await line())

        try:
            writer.write(load.encode() + b"\n")
            await line()
            yield go
        finally:
            writer.close()
