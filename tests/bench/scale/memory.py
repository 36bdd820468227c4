"""Memory of every process, over the number of responses that have ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from tests.bench.load import Load, Mode
from tests.bench.prompts import SCRIPT
from tests.bench.results import Results
from tests.bench.scale.setup import Row, Setup, body, curves, mebibytes, put

SAYS = "memory of every process after up to 20,000 finished responses, half of them streamed"
SIZES = (0, 1_000, 2_000, 4_000, 6_000, 8_000, 10_000, 12_000, 14_000, 16_000, 18_000, 20_000)
CLIENTS = 32
TOKENS = 16


async def rows(setup: Setup, sizes: Sequence[int]) -> AsyncIterator[Row]:
    async with setup.longhaul() as longhaul:
        done = 0
        for size in sizes:
            half = (size - done) // 2
            for mode in (Mode.STREAM, Mode.FIRE):
                if half:
                    await put(longhaul, Load("", mode, CLIENTS, half, body(TOKENS), SCRIPT))
            done = size
            yield {"responses": size, **mebibytes(longhaul)}


def plots(results: Results) -> dict[str, str]:
    sizes = {f"{role} MiB": role for role in ("api", "worker", "maintenance", "postgres", "redis")}
    return {"scale-memory": curves(results, "Memory after so many responses", "responses", "MiB", sizes)}
