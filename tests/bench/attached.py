"""Longhaul in front of a vLLM server that runs: beside that server, and beside an engine of its own."""

from __future__ import annotations

import asyncio
import signal
import time
from bisect import bisect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import httpx

from config.models import VLLM_SERVER, load_models
from config.settings import CHECKOUT
from tests.bench.contenders.base import Contender
from tests.bench.contenders.longhaul import Longhaul, Variant
from tests.bench.contenders.models import Served
from tests.bench.contenders.peer import Peer, flags
from tests.bench.load import Mode
from tests.bench.plan import Cell, Name
from tests.support.longhaul import Longhaul as Installation
from tests.support.longhaul import send_all
from tests.support.vllm_serve import VllmServe
from tests.support.waiting import until
from workers.engine.vllm.compat import machine
from workers.engine.vllm.compat.processes import IN_CORE_EXECUTOR
from workers.generation.writing.flush_clock import ON_CPU_EVENTS_PER_SECOND

CELLS = tuple(Cell(Mode.STREAM, streams) for streams in (1, 16, 64))
ATTACHED = "attached"
EXECUTOR = {"distributed_executor_backend": IN_CORE_EXECUTOR}
"""The engine of the server computes in its own process, as an engine of ours does."""
ON_CPU = {"LONGHAUL_EVENTS_PER_SECOND": str(ON_CPU_EVENTS_PER_SECOND)}
"""The server computes on the worker's cores: the setting of a worker whose engine does."""
EVENTS = 5
"""Of each reader, before the next thing is killed."""
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.01


class Attached(Longhaul):
    """Longhaul in front of another contender's server, which runs and is held still with it."""

    def __init__(self, folder: Path, served: Served, server: Peer) -> None:
        attached = replace(served, engine=VLLM_SERVER, url=server.url, engine_args={})
        super().__init__(ATTACHED, folder, attached, Variant(settings=ON_CPU))
        self._server = server

    async def start(self) -> None:
        self._server.thaw()
        await super().start()

    def freeze(self) -> None:
        super().freeze()
        self._server.freeze()

    def thaw(self) -> None:
        self._server.thaw()
        super().thaw()


def contenders(folder: Path, served: Served) -> list[Contender]:
    """The server computes as an engine of ours does, on all cores but one, too. As vLLM starts it on CPUs, two of its
    processes spin, and on two cores they leave none to what is in front."""
    options = ("--enable-scale-out", *flags(EXECUTOR))
    threads = str(max(1, machine.physical_cores() - 1))
    server = Peer(Name.PEER, folder, served, *options, OMP_NUM_THREADS=threads)
    return [server, Longhaul(Name.LONGHAUL, folder, served), Attached(folder, served, server)]


class Reader:
    """Reads a stream to its end. `events`: when each piece of text came (monotonic seconds)."""

    def __init__(self) -> None:
        self.events: list[float] = []

    async def read(self, http: httpx.AsyncClient, url: str, number: int) -> None:
        asked = {"temperature": 0, "ignore_eos": True, "max_output_tokens": 3000, "background": True, "stream": True}
        body = {"model": "demo", "input": f"Tell me story {number}.", **asked}
        async with http.stream("POST", f"{url}/v1/responses", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: ") and line.endswith("text.delta"):
                    self.events.append(time.monotonic())

    def since(self, moment: float) -> list[float]:
        """The events from the last one before that moment on."""
        return self.events[max(bisect(self.events, moment) - 1, 0) :]


async def takeovers(folder: Path, streams: int) -> str:
    """How long the slowest of the readers waits: when one of two workers is killed, and after the server's return."""
    demo = load_models(CHECKOUT / "config" / "models.toml").models[0]
    with VllmServe(folder, replace(demo, engine_args={**demo.engine_args, **EXECUTOR})) as server:
        await asyncio.to_thread(server.start)
        longhaul = Installation(folder / "home", upstream=server.url, workers=2)
        try:
            await asyncio.to_thread(longhaul.start)
            gaps, waits = await _waits(longhaul, server, streams)
        finally:
            await asyncio.to_thread(longhaul.stop)
    return f"takeover: {max(gaps):.2f} s when a worker dies, {max(waits):.2f} s after the server's return"


async def _waits(longhaul: Installation, server: VllmServe, streams: int) -> tuple[list[float], list[float]]:
    """Seconds between each reader's events when a worker is killed, and from the server's return to its next event."""
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as http, asyncio.TaskGroup() as group:
        readers = [Reader() for _ in range(streams)]
        tasks = [group.create_task(each.read(http, longhaul.url, n)) for n, each in enumerate(readers)]
        await _all_get_on(readers, 0.0)
        killed = time.monotonic()
        send_all(longhaul.named(("celeryd",))[:1], signal.SIGKILL)
        await _all_get_on(readers, killed)
        gaps = [after - before for each in readers for before, after in pairwise(each.since(killed))]
        server.kill()
        returned = await _returned(http, server)
        await _all_get_on(readers, returned)
        waits = [each.since(returned)[1] - returned for each in readers]
        for task in tasks:
            task.cancel()
    return gaps, waits


async def _all_get_on(readers: Sequence[Reader], moment: float) -> None:
    """Waits until each has so many events behind that moment."""
    await until(lambda: all(len(each.since(moment)) > EVENTS for each in readers), PATIENCE_SECONDS, "all get on")


async def _returned(http: httpx.AsyncClient, server: VllmServe) -> float:
    """Starts the server; when it answered first."""
    starting = asyncio.create_task(asyncio.to_thread(server.start))

    async def is_there() -> bool:
        await asyncio.sleep(LOOK_SECONDS)
        with suppress(httpx.TransportError):
            return (await http.get(f"{server.url}/health")).status_code == httpx.codes.OK
        return False

    await until(is_there, PATIENCE_SECONDS, "the server is back")
    found = time.monotonic()
    await starting
    return found
