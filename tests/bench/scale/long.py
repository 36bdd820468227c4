"""One very long response: does it slow down, and does anything keep all of it in memory?"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial

import httpx

from app.store import retention
from tests.bench.contenders.longhaul import Longhaul
from tests.bench.results import Results
from tests.bench.scale.setup import Row, Setup, body, curves, mebibytes, post, scalar, when

SAYS = "a response of 100,000 tokens, at up to 2,000 a second"
SIZES = (100_000,)
RATE = 2000
PARTS = 10
_TOKENS = "SELECT coalesce(sum(octet_length(tokens)), 0) / 4 FROM chunks WHERE response_id = :id"
_BYTES = "SELECT coalesce(sum(octet_length(frames)), 0) FROM chunks WHERE response_id = :id"
_STATUS = "SELECT status FROM responses WHERE id = :id"


async def rows(setup: Setup, sizes: Sequence[int]) -> AsyncIterator[Row]:
    async with setup.longhaul(context_length=max(sizes) + 32768, tokens_per_second=float(RATE)) as longhaul:
        for size in sizes:
            response_id = str((await post(longhaul, background=True, **body(size)))["id"])
            async for row in _while_it_runs(longhaul, response_id, size):
                yield row
            yield {"tokens": size, "state": "ended", **await _reading(longhaul, response_id)}
            while await retention.merge_finished(longhaul.db, datetime.now(UTC)):
                pass
            yield {"tokens": size, "state": "merged", **await _reading(longhaul, response_id)}


async def _while_it_runs(longhaul: Longhaul, response_id: str, size: int) -> AsyncIterator[Row]:
    """A row for each tenth of it."""
    begun = time.perf_counter()
    for part in range(1, PARTS + 1):
        await when(partial(_has, longhaul, response_id, size * part // PARTS))
        if part < PARTS and await _has(longhaul, response_id, size + 1):
            return  # so fast that there is nothing to see
        tokens, now = await scalar(longhaul, _TOKENS, id=response_id), time.perf_counter()
        row: Row = {"tokens": int(tokens), "state": "running", "seconds": round(now - begun, 2)}
        yield row | await _reading(longhaul, response_id) | mebibytes(longhaul)
    await when(partial(_has, longhaul, response_id, size + 1))


async def _has(longhaul: Longhaul, response_id: str, tokens: int) -> bool:
    """Whether it has so many tokens, or has ended."""
    if await scalar(longhaul, _STATUS, id=response_id) not in ("queued", "in_progress"):
        return True
    return bool(await scalar(longhaul, _TOKENS, id=response_id) >= tokens)


async def _reading(longhaul: Longhaul, response_id: str) -> Row:
    """What a poll takes, and how much there is."""
    async with httpx.AsyncClient(base_url=longhaul.url, timeout=60, verify=False) as http:
        begun = time.perf_counter()
        answer = await http.get(f"/v1/responses/{response_id}")
        spent = time.perf_counter() - begun
    stored = await scalar(longhaul, _BYTES, id=response_id)
    return {"poll ms": round(1000 * spent, 1), "answer bytes": len(answer.content), "log bytes": int(stored)}


def plots(results: Results) -> dict[str, str]:
    running = Results(results.name, rows=[row for row in results.rows if row["state"] == "running"])
    return {
        "scale-long": curves(running, "A response of 100,000 tokens", "tokens", "s", {"seconds": "seconds so far"}),
        "scale-long-poll": curves(running, "A look at it while it runs", "tokens", "ms", {"poll ms": "GET, ms"}),
    }
