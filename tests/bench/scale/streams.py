"""Streams at once, each at a set rate: how many keep it, and what a token costs then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from tests.bench.load import Load, Mode, Time
from tests.bench.prompts import SCRIPT
from tests.bench.results import Results
from tests.bench.scale.setup import Row, Setup, body, curves, per_thousand, put

SAYS = "1 to 500 streams at once, 20 tokens a second each"
SIZES = (1, 10, 50, 100, 200, 350, 500)
RATE = 20
SECONDS = 10


async def rows(setup: Setup, sizes: Sequence[int]) -> AsyncIterator[Row]:
    settings = {"LONGHAUL_WORKER_CONCURRENCY": str(max(1024, *sizes))}
    async with setup.longhaul(settings=settings, tokens_per_second=float(RATE)) as longhaul:
        for size in sizes:
            load = Load("", Mode.STREAM, size, size, body(RATE * SECONDS), SCRIPT)
            measured = await put(longhaul, load)
            figures = measured.figures
            yield {
                "streams": size,
                "tokens/s": round(figures.tokens / figures.seconds, 1),
                "share of the rate": round(figures.tokens / figures.seconds / (size * RATE), 3),
                "first text p95 ms": figures.times[Time.TTFT]["p95"],
                "gap p95 ms": figures.times[Time.GAP]["p95"],
                "tokens/event": round(figures.tokens / figures.deltas, 2),
                **per_thousand(measured, figures.tokens),
            }


def plots(results: Results) -> dict[str, str]:
    title = "CPU seconds per 1,000 tokens"
    costs = {"api CPU s": "API", "worker CPU s": "worker", "postgres CPU s": "Postgres", "redis CPU s": "Valkey"}
    return {"scale-streams": curves(results, title, "streams", "CPU s", costs)}
