"""How soon a webhook tells of an end: from the response's commit to the first byte at an endpoint on this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import httpx

from tests.bench.contenders.models import NAME, scripted
from tests.bench.numbers import Spread, quantile, ratios
from tests.support.longhaul import Longhaul
from tests.support.waiting import until

PATIENCE_SECONDS = 120.0
P50_MS, P95_MS, MAX_DELAY = 50.0, 200.0, 1.1
"""The targets. The last one is p95 beside a dead endpoint, as a ratio to p95 without it."""
HEADS = ("", "endings a second", "p50 (ms)", "p95", "worst")
ALONE, BESIDE = "one endpoint", "beside a dead one"


@dataclass(frozen=True, slots=True)
class Sizes:
    rate: float = 100.0
    """Background responses that are sent in a second; each ends at once."""
    seconds: float = 12.0
    """Length of each scene."""
    rounds: int = 5
    """The two scenes alternate: a slow moment of the machine hits both alike."""


@dataclass(slots=True)
class Scene:
    """What its rounds showed."""

    name: str
    rates: list[float] = field(default_factory=list)
    """Endings in a second, as they were committed."""
    late: list[list[float]] = field(default_factory=list)
    """Milliseconds."""

    def of(self, share: float) -> float:
        """The median of a quantile over the rounds."""
        return median(quantile(each, share) for each in self.late)

    def row(self) -> list[str]:
        times = [f"{self.of(share):.0f}" for share in (0.5, 0.95, 1.0)]
        return [self.name, f"{median(self.rates):.0f}", *times]


def table(alone: Scene, beside: Scene) -> str:
    """Both scenes, and what became of the targets."""
    rows = [list(HEADS), ["---"] * len(HEADS), alone.row(), beside.row()]
    p95 = [{number: quantile(each, 0.95) for number, each in enumerate(scene.late)} for scene in (beside, alone)]
    delay = Spread.of(ratios(*p95))
    assert delay is not None
    targets = (
        (f"p50 {alone.of(0.5):.0f} ms", f"≤ {P50_MS:.0f} ms", alone.of(0.5) <= P50_MS),
        (f"p95 {alone.of(0.95):.0f} ms", f"≤ {P95_MS:.0f} ms", alone.of(0.95) <= P95_MS),
        (
            f"p95 beside a dead endpoint x {delay.median:.2f} ({delay.low:.2f} to {delay.high:.2f})",
            f"≤ x {MAX_DELAY}",
            delay.median <= MAX_DELAY,
        ),
    )
    verdicts = [f"{measured}, target {target}: {'met' if met else 'MISSED'}" for measured, target, met in targets]
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + ["", *verdicts])


class Endpoint:
    """Takes every event, and notes when its first byte came; a dead one accepts connections and says nothing."""

    def __init__(self, *, is_dead: bool = False) -> None:
        self._is_dead = is_dead
        self._server: asyncio.Server | None = None
        self.first: dict[str, float] = {}
        """By event; epoch seconds."""

    async def start(self) -> str:
        """Returns its URL."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            start = await reader.readexactly(1)
            at = time.time()
            head = (start + await reader.readuntil(b"\r\n\r\n")).decode().lower()
            fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
            await reader.readexactly(int(fields["content-length"]))
            if self._is_dead:
                await reader.read()  # until the sender gives up
                return
            self.first.setdefault(fields["webhook-id"], at)
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def measure(folder: Path, sizes: Sizes, say: Callable[[str], None]) -> str:
    """The table, of an installation of its own with the scripted engine."""
    models = folder / "models.toml"
    scripted(max_num_seqs=256).write(models)
    longhaul = Longhaul(folder / "home", models, LONGHAUL_WEBHOOK_NETWORKS="127.0.0.0/8")
    scenes = alone, beside = Scene(ALONE), Scene(BESIDE)
    try:
        await asyncio.to_thread(longhaul.start)
        lines = (longhaul.home / "services").read_text().splitlines()
        connection = await asyncpg.connect(dict(line.split("=", 1) for line in lines)["DATABASE_URL"])
        async with httpx.AsyncClient(base_url=f"{longhaul.url}/v1", timeout=PATIENCE_SECONDS, limits=NO_LIMITS) as http:
            bench = Bench(http, connection, sizes)
            async with bench.telling(good := Endpoint()) as endpoint_id:
                await bench.round(Scene("warm up"), good, endpoint_id, seconds=min(3.0, sizes.seconds))
                for _ in range(sizes.rounds):
                    await bench.round(alone, good, endpoint_id)
                    async with bench.telling(Endpoint(is_dead=True)):
                        await bench.round(beside, good, endpoint_id)
                    say("  ".join(f"{scene.name}: p95 {quantile(scene.late[-1], 0.95):.0f} ms" for scene in scenes))
        await connection.close()
    finally:
        await asyncio.to_thread(longhaul.stop)
    return table(alone, beside)


NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None)


class Bench:
    """Sends responses at a rate, and compares what an endpoint got with the rows."""

    def __init__(self, http: httpx.AsyncClient, connection: Any, sizes: Sizes) -> None:
        self._http = http
        self._connection = connection
        self._sizes = sizes

    @asynccontextmanager
    async def telling(self, endpoint: Endpoint) -> AsyncIterator[str]:
        """Every end is told to the endpoint within the block; yields its id."""
        body = {"name": "bench", "url": await endpoint.start(), "event_types": ["response.completed"]}
        made = (await self._http.post("/webhook_endpoints", json=body)).raise_for_status().json()["id"]
        try:
            yield made
        finally:
            await self._http.delete(f"/webhook_endpoints/{made}")
            await endpoint.close()

    async def round(self, scene: Scene, endpoint: Endpoint, endpoint_id: str, seconds: float | None = None) -> None:
        began, rate = time.monotonic(), self._sizes.rate
        async with asyncio.TaskGroup() as group:
            asking = []
            for number in range(max(2, round(rate * (seconds or self._sizes.seconds)))):
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                asking.append(group.create_task(self._ask()))
        told = await self._told(endpoint_id, [each.result() for each in asking])
        await until(lambda: told.keys() <= endpoint.first.keys(), PATIENCE_SECONDS, "every end was told")
        scene.rates.append(len(told) / max(max(told.values()) - min(told.values()), 0.001))
        scene.late.append([1000 * (endpoint.first[event_id] - at) for event_id, at in told.items()])

    async def _ask(self) -> str:
        body = {"model": NAME, "input": "/count 1", "background": True}
        made: str = (await self._http.post("/responses", json=body)).raise_for_status().json()["id"]
        return made

    async def _told(self, endpoint_id: str, ids: Sequence[str]) -> dict[str, float]:
        """When each of these ended, by event, once all have: the start of the transaction that commits the end."""
        statement = "SELECT event_id, created_at FROM webhook_deliveries WHERE endpoint = $1 AND object_id = ANY($2)"

        async def all_found() -> list[Any] | None:
            found = await self._connection.fetch(statement, endpoint_id, ids)
            return found if len(found) == len(ids) else None

        found = await until(all_found, PATIENCE_SECONDS, "every response has ended", pause=0.1)
        return {row["event_id"]: row["created_at"].timestamp() for row in found}
