"""Bare vLLM: `AsyncLLM.generate` in one process and no server at all. What no server can be faster than."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from config.settings import CHECKOUT
from tests.bench.contenders.base import Contender
from tests.bench.contenders.models import ENGINE_ARGS, Served
from tests.bench.load import Load, Mode
from tests.bench.measurement import MAX_LINE_BYTES, Go, prepared
from tests.bench.processes import Role


class Bare(Contender):
    modes = frozenset({Mode.STREAM})

    def __init__(self, name: str, folder: Path, served: Served, *, in_core: bool = False) -> None:
        super().__init__(name, folder)
        self._models = folder / f"{name}.toml"
        args = ENGINE_ARGS if served.engine_args is None else served.engine_args
        apart = {} if in_core else {"distributed_executor_backend": "uni"}  # the default: on a CPU vLLM makes it "mp"
        replace(served, engine_args={**args, **apart}).write(self._models)
        self._socket = folder / f"{name}.sock"

    async def start(self) -> None:
        argv = (sys.executable, "-m", "tests.bench.contenders.bare_engine", str(self._models), str(self._socket))
        await self.launch(Role.API, argv, {"VLLM_LOGGING_LEVEL": "WARNING"}, CHECKOUT)
        await self.ready(Role.API, self._socket.exists)

    @asynccontextmanager
    async def client(self, load: Load) -> AsyncIterator[Go]:
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=MAX_LINE_BYTES)
        try:
            yield await prepared(load, reader, writer)
        finally:
            writer.close()
