"""How soon Longhaul answers: after `longhaul up`, and after `kill -9` of its API.

The engine is the scripted one, so what vLLM takes to import and load is not in these numbers. A killed API answers
again once a POST is stored and answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import httpx
import psutil

from app.local.ports import free_port
from config.settings import CHECKOUT
from tests.bench.results import Results
from tests.support.upping import Up

NAME = "restart"
TIMES = 5
POLL_SECONDS = 0.01
PATIENCE_SECONDS = 120.0
BODY = {"model": "demo", "input": "Hello!", "background": True}


class NoAnswer(ValueError):
    """The API did not answer."""


async def measure(say: Callable[[str], None], times: int, folder: Path) -> Results:
    """Starts a fresh Longhaul, starts it again on its data `times` times, and kills its API once in each start.

    Once, because a process that dies again soon is restarted after a delay.
    """
    results = Results.begin(NAME, times=times)
    fresh, _, _ = await _start(folder, kill=False)
    _add(results, say, "longhaul up, for the first time", [fresh], [])
    started = [await _start(folder, kill=True) for _ in range(times)]
    ups, kills, cpu = (list(column) for column in zip(*started, strict=True))
    _add(results, say, "longhaul up, on its data", ups, [])
    _add(results, say, "kill -9 of the API", kills, cpu)
    return results


async def _start(folder: Path, *, kill: bool) -> tuple[float, float, float]:
    """The seconds until `longhaul up` was ready and until its killed API answered, and that process's CPU seconds."""
    port = free_port()
    env = {"LONGHAUL_PORT": str(port), "LONGHAUL_FLOWER_PORT": str(free_port())}
    began = time.monotonic()
    with Up(folder, (CHECKOUT / "Procfile").read_text(encoding="utf-8"), env=env) as up:
        await asyncio.to_thread(up.wait_for_output, "ready after", PATIENCE_SECONDS)
        ready, answered, cpu = time.monotonic() - began, 0.0, 0.0
        if kill:
            answered, cpu = await _killed(up, port)
        up.look()
    return ready, answered, cpu


async def _killed(up: Up, port: int) -> tuple[float, float]:
    began = time.monotonic()
    _api(up).kill()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        await _answered(client, began + PATIENCE_SECONDS)
    seconds = time.monotonic() - began
    used = _api(up).cpu_times()
    return seconds, used.user + used.system


async def _answered(client: httpx.AsyncClient, end: float) -> None:
    while time.monotonic() < end:
        try:
            if (await client.post("/v1/responses", json=BODY)).is_success:
                return
        except httpx.TransportError:
            pass  # nothing listens yet
        await asyncio.sleep(POLL_SECONDS)
    raise NoAnswer("the API did not answer again")


def _api(up: Up) -> psutil.Process:
    """The process of `longhaul api`."""
    for process in psutil.Process(up.pid).children(recursive=True):
        words = process.cmdline()
        if words[-1:] == ["api"] and "sh" not in words[0]:
            return process
    raise NoAnswer("the API does not run")


def _add(results: Results, say: Callable[[str], None], what: str, seconds: list[float], cpu: list[float]) -> None:
    row = {"what": what, "seconds (median)": round(median(seconds), 2), "slowest": round(max(seconds), 2)}
    row["CPU s of the API"] = round(median(cpu), 2) if cpu else ""
    results.rows.append(row)
    say(", ".join(f"{name}: {value}" for name, value in row.items()))
