"""Responses that wait: how fast they are taken in, what each weighs, how fast they are cancelled and worked off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial

from tests.bench.contenders.longhaul import Longhaul
from tests.bench.load import Load, Mode, Time
from tests.bench.processes import Role
from tests.bench.prompts import SCRIPT
from tests.bench.results import Results
from tests.bench.scale.setup import MIB, Row, Setup, body, curves, mebibytes, put, scalar, when

SAYS = "up to 100,000 queued responses: taken in, cancelled, taken in again, worked off"
SIZES = (1_000, 10_000, 100_000)
CLIENTS = 16
TOKENS = 4
PAUSE = 0.2
_LEFT = "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"
_SPENT = """
    SELECT extract(epoch FROM max(finished_at) - min(started_at)) FROM responses WHERE started_at >= :since
"""


async def rows(setup: Setup, sizes: Sequence[int]) -> AsyncIterator[Row]:
    async with setup.longhaul() as longhaul:
        for size in sizes:
            await longhaul.end(Role.WORKER)
            row: Row = {"responses": size}
            ids, row["POSTs/s"], row["POST p99 ms"] = await _enqueue(longhaul, size)
            row |= {"Valkey keys MiB": await _redis_memory(longhaul), **mebibytes(longhaul)}
            paths = [f"/v1/responses/{response_id}/cancel" for response_id in ids]
            cancelled = await put(longhaul, Load("", Mode.CANCEL, CLIENTS, size, paths=paths))
            row["cancels/s"] = round(size / cancelled.figures.seconds, 1)
            await _enqueue(longhaul, size)
            row["drained/s"] = round(size / await _drain(longhaul), 1)
            row |= {f"{name} afterwards": value for name, value in mebibytes(longhaul).items()}
            yield row


async def _enqueue(longhaul: Longhaul, size: int) -> tuple[list[str], float, float]:
    load = Load("", Mode.ENQUEUE, CLIENTS, size, body(TOKENS), SCRIPT, warmup=0, busy=0, keep=True)
    figures = (await put(longhaul, load)).figures
    return figures.ids, round(size / figures.seconds, 1), figures.times[Time.POST]["p99"]


async def _redis_memory(longhaul: Longhaul) -> float:
    redis = longhaul.redis
    try:
        found = await redis.info("memory")
    finally:
        await redis.aclose()
    return round(int(found["used_memory"]) / MIB, 1)


async def _drain(longhaul: Longhaul) -> float:
    """Seconds from the worker's first claim to the end of the last one."""
    since = await scalar(longhaul, "SELECT now()")
    await longhaul.begin(Role.WORKER)
    await when(partial(_idle, longhaul), PAUSE)
    return float(await scalar(longhaul, _SPENT, since=since))


async def _idle(longhaul: Longhaul) -> bool:
    return not await scalar(longhaul, _LEFT)


def plots(results: Results) -> dict[str, str]:
    rates = {"POSTs/s": "POSTs", "cancels/s": "cancels", "drained/s": "worked off"}
    sizes = {"Valkey keys MiB": "Valkey's keys", "api MiB": "API", "maintenance MiB": "maintenance"}
    return {
        "scale-queued": curves(results, "Responses per second", "responses", "1/s", rates, logarithmic=True),
        "scale-queued-memory": curves(results, "Memory", "responses", "MiB", sizes, logarithmic=True),
    }
