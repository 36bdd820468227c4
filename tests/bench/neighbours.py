"""What batch work costs interactive requests at one vLLM: sent straight to it, and through Longhaul."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from tests.support.longhaul import Longhaul, send_all
from tests.support.vllm_serve import VllmServe

Json = dict[str, Any]
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 600.0
HEADS = ("", "first token p50", "p95", "gap p50", "p95 (ms)", "interactive", "failed", "lines ended", "lost")


@dataclass(frozen=True, slots=True)
class Sizes:
    streams: int = 4
    """Interactive clients, each with one request after the other."""
    seconds: float = 30.0
    """How long they ask."""
    lines: int = 2000
    tokens: int = 64
    """Tokens of each answer."""


@dataclass(slots=True)
class Scene:
    """What one scene showed. Times are milliseconds."""

    name: str
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    ok: int = 0
    failed: int = 0
    lines: int = 0
    lost: int = 0

    def row(self) -> list[str]:
        times = [each for values in (self.first, self.gaps) for each in _p50_p95(values)]
        return [self.name, *times, *map(str, (self.ok, self.failed, self.lines, self.lost))]


def _p50_p95(values: Sequence[float]) -> tuple[str, str]:
    if len(values) < 2:
        return "-", "-"
    cuts = quantiles(values, n=20, method="inclusive")
    return f"{cuts[9]:.0f}", f"{cuts[18]:.0f}"


def table(scenes: Sequence[Scene]) -> str:
    rows = [list(HEADS), ["---"] * len(HEADS), *(scene.row() for scene in scenes)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


async def measure(url: str, server: VllmServe | None, folder: Path, sizes: Sizes, say: Callable[[str], None]) -> str:
    """The table. `server`: can be restarted in the middle; None: nobody's to restart."""
    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS, limits=httpx.Limits(max_connections=None)) as http:
        model = (await http.get(f"{url}/v1/models")).raise_for_status().json()["data"][0]["id"]
        bench = Bench(http, model, sizes)
        scenes = [await bench.scene("alone, straight to vLLM", url)]
        say(table(scenes[-1:]))
        scenes.append(await bench.scene("beside lines, straight to vLLM", url, bench.straight(url)))
        say(table(scenes[-1:]))
        longhaul = Longhaul(folder / "home", upstream=url, model=model)
        try:
            await asyncio.to_thread(longhaul.start)
            scenes.append(await bench.scene("alone, through Longhaul", longhaul.url))
            scenes.append(await bench.scene("beside lines, through Longhaul", longhaul.url, bench.batch(longhaul.url)))
            say(table(scenes[-2:]))
            faults = faulty(longhaul, server, sizes.seconds)
            name = "the same, with a kill -9 of the worker" + (" and of vLLM" if server else "")
            scenes.append(await bench.scene(name, longhaul.url, bench.batch(longhaul.url), faults))
        finally:
            await asyncio.to_thread(longhaul.stop)
    return table(scenes)


@asynccontextmanager
async def faulty(longhaul: Longhaul, server: VllmServe | None, seconds: float) -> AsyncIterator[None]:
    """Kills the worker after a third of the time, and restarts the server after two."""

    async def kill() -> None:
        await asyncio.sleep(seconds / 3)
        send_all(longhaul.named(("celeryd",)), signal.SIGKILL)
        if server is not None:
            await asyncio.sleep(seconds / 3)
            server.kill()
            await asyncio.to_thread(server.start)

    task = asyncio.create_task(kill())
    try:
        yield
    finally:
        await task


class Bench:
    def __init__(self, http: httpx.AsyncClient, model: str, sizes: Sizes) -> None:
        self._http = http
        self._model = model
        self._sizes = sizes

    async def scene(self, name: str, url: str, lines: Any = None, faults: Any = None) -> Scene:
        """`lines`: sends them to the scene until it is cancelled, or has ended them all."""
        scene = Scene(name)
        await self._ask(url, Scene("warm up"), 0)
        behind = asyncio.create_task(lines(scene)) if lines else None
        await asyncio.sleep(2.0 if lines else 0.0)
        until = time.monotonic() + self._sizes.seconds
        try:
            async with faults or _nothing(), asyncio.TaskGroup() as group:
                for number in range(self._sizes.streams):
                    group.create_task(self._client(url, scene, number, until))
            if behind is not None and getattr(lines, "ends", False):
                await behind
        finally:
            if behind is not None:
                behind.cancel()
                await asyncio.gather(behind, return_exceptions=True)
        return scene

    async def _client(self, url: str, scene: Scene, number: int, until: float) -> None:
        while time.monotonic() < until:
            await self._ask(url, scene, number)

    async def _ask(self, url: str, scene: Scene, number: int) -> None:
        sent = last = time.perf_counter()
        try:
            async with self._http.stream("POST", f"{url}/v1/chat/completions", json=self._body(number, True)) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    choices = json.loads(line.removeprefix("data: ")).get("choices")
                    if choices is None:
                        raise httpx.ReadError("an error within the stream")
                    if choices and any(
                        choices[0]["delta"].get(each) for each in ("content", "reasoning", "reasoning_content")
                    ):
                        now = time.perf_counter()
                        (scene.first if last == sent else scene.gaps).append(1000 * (now - last))
                        last = now
            scene.ok += 1
        except httpx.HTTPError:
            scene.failed += 1
            await asyncio.sleep(POLL_SECONDS)

    def _body(self, number: int, stream: bool) -> Json:
        text = f"Tell me a story about the number {number}."
        asked = {"temperature": 0, "max_tokens": self._sizes.tokens, "ignore_eos": True}
        return {"model": self._model, "messages": [{"role": "user", "content": text}], "stream": stream, **asked}

    def straight(self, url: str) -> Callable[[Scene], Any]:
        """All lines at once, as a script sends them."""

        async def send(scene: Scene) -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(self._sizes.lines):
                    group.create_task(line(number, scene))

        async def line(number: int, scene: Scene) -> None:
            try:
                (await self._http.post(f"{url}/v1/chat/completions", json=self._body(number, False))).raise_for_status()
                scene.lines += 1
            except httpx.HTTPError:
                scene.lost += 1

        return send

    def batch(self, url: str) -> Callable[[Scene], Any]:
        """The same lines as a batch, to its end."""

        async def send(scene: Scene) -> None:
            path = "/v1/chat/completions"
            bodies = [self._body(number, False) for number in range(self._sizes.lines)]
            lines = [
                {"custom_id": str(n), "method": "POST", "url": path, "body": body} for n, body in enumerate(bodies)
            ]
            files = {"file": ("lines.jsonl", "\n".join(map(json.dumps, lines)).encode())}
            file = (await self._http.post(f"{url}/v1/files", files=files, data={"purpose": "batch"})).raise_for_status()
            asked = {"input_file_id": file.json()["id"], "endpoint": path, "completion_window": "24h"}
            made = (await self._http.post(f"{url}/v1/batches", json=asked)).raise_for_status().json()
            while made["status"] not in ("completed", "failed", "expired", "cancelled"):
                await asyncio.sleep(POLL_SECONDS)
                made = (await self._http.get(f"{url}/v1/batches/{made['id']}")).raise_for_status().json()
                scene.lines = made["request_counts"]["completed"]
            scene.lost = self._sizes.lines - scene.lines

        send.ends = True  # type: ignore[attr-defined]
        return send


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield
