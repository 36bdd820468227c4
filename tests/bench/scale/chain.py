"""A chain of turns, each continuing the one before."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from statistics import median
from typing import Any

from tests.bench.results import Results
from tests.bench.scale.setup import Row, Setup, body, curves, post, scalar

SAYS = "a chain of 200 turns"
SIZES = (1, 10, 25, 50, 100, 150, 200)
TOKENS = 32
_BYTES = "SELECT octet_length(request::text) + octet_length(output::text) FROM responses WHERE id = :id"
AROUND = 5
"""A row has the median of this many requests."""


async def rows(setup: Setup, sizes: Sequence[int]) -> AsyncIterator[Row]:
    async with setup.longhaul(context_length=1_000_000) as longhaul:
        previous: str | None = None
        spent: list[float] = []
        for turn in range(1, max(sizes) + 1):
            begun = time.perf_counter()
            more: dict[str, Any] = {} if previous is None else {"previous_response_id": previous}
            response = await post(longhaul, **body(TOKENS), **more)
            spent.append(time.perf_counter() - begun)
            previous = response["id"]
            if turn in sizes:
                yield {
                    "turn": turn,
                    "ms": round(1000 * median(spent[-AROUND:]), 2),
                    "input tokens": response["usage"]["input_tokens"],
                    "row bytes": await scalar(longhaul, _BYTES, id=previous),
                }


def plots(results: Results) -> dict[str, str]:
    return {"scale-chain": curves(results, "A turn of a chain", "turn", "ms", {"ms": "one turn, ms"})}
