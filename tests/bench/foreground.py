"""How long a stream waits for its first token: alone, behind many short responses, behind a full engine of long ones.

Beside that, the tokens per second of what runs in the background. A `--variant` of the commit before has both without
foreground places; the ratios are within one run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from sqlalchemy import text

from tests.bench.contenders.longhaul import Longhaul, Variant
from tests.bench.contenders.models import ENGINE_ARGS, Served, scripted
from tests.bench.contenders.models import NAME as MODEL
from tests.bench.processes import Role, freeze, thaw
from tests.bench.results import Results

NAME = "foreground"
PATIENCE_SECONDS = 600.0
SETTLE_SECONDS = 3.0
"""From the worker's start on a backlog to the count of its tokens: every slot is taken."""
MEASURED_SECONDS = 10.0
"""How long the tokens of a backlog are counted. Then what runs may yield, and the streams begin."""
POSTS_AT_ONCE = 64
_TOKENS = """
    SELECT coalesce((SELECT sum(CAST(usage ->> 'output_tokens' AS int)) FROM responses), 0) + coalesce((
        SELECT sum(octet_length(c.tokens)) / 4 FROM chunks c JOIN responses r ON r.id = c.response_id
        WHERE r.finished_at IS NULL
    ), 0)
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    streams: int = 10
    """One after the other: they take kept places."""
    together: int = 48
    """At once: three times the places that are kept of 256 slots, so background yields to the others."""
    short: int = 5_000
    long: int = 300
    short_tokens: int = 64
    long_tokens: int = 8_000
    """The demo model has 8,192. No long response ends while it is measured, so longer ones would show nothing else."""


def served(*, with_model: bool) -> Served:
    if not with_model:
        return scripted(tokens_per_second=50.0, max_num_seqs=256)
    return Served(context_length=8_192, engine_args={**ENGINE_ARGS, "kv_cache_memory_bytes": 2 << 30})


async def measure(say: Say, folder: Path, variants: Mapping[str, Variant], model: Served, sizes: Sizes) -> Results:
    """A row for each variant and backlog; each backlog on a fresh Longhaul."""
    results = Results.begin(NAME, streams=sizes.streams, model=model.engine)
    for name, variant in variants.items():
        for what, count, tokens in (
            ("nothing", 0, 0),
            (f"{sizes.short:,} short", sizes.short, sizes.short_tokens),
            (f"{sizes.long:,} long", sizes.long, sizes.long_tokens),
        ):
            place = folder / f"{name}-{count}"
            place.mkdir(parents=True)
            longhaul = Longhaul(name, place, model, replace(variant))
            try:
                await longhaul.start()
                row = await _behind(longhaul, count, tokens, sizes)
            finally:
                await longhaul.stop()
            results.rows.append({"Longhaul": name, "behind": what, **row})
            results.save()
            say("  " + ", ".join(f"{key}: {value}" for key, value in results.rows[-1].items()))
    return results


async def _behind(longhaul: Longhaul, count: int, tokens: int, sizes: Sizes) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=POSTS_AT_ONCE)
    async with httpx.AsyncClient(base_url=longhaul.url, timeout=PATIENCE_SECONDS, limits=limits) as client:
        await _first_token(client)  # warms it up
        rate = ""
        if count:
            with _held(longhaul):  # or short responses would end as fast as they come
                await asyncio.gather(*(_posts(client, numbers, tokens) for numbers in _parts(count)))
            await asyncio.sleep(SETTLE_SECONDS)
            rate = f"{await _rate(longhaul):,.0f}"
        seconds = [await _first_token(client) for _ in range(sizes.streams)]
        together = await asyncio.gather(*(_first_token(client) for _ in range(sizes.together)))
    return {
        "first token s (median)": _shown(median(seconds)),
        "slowest": _shown(max(seconds)),
        f"slowest of {sizes.together} at once": _shown(max(together)),
        "tokens/s behind": rate,
    }


@contextmanager
def _held(longhaul: Longhaul) -> Iterator[None]:
    """Holds the worker and its engine still."""
    pids = [pid for role in (Role.WORKER, Role.ENGINE) for pid in longhaul.processes().get(role, ())]
    freeze(pids)
    try:
        yield
    finally:
        thaw(pids)


def _parts(count: int) -> list[range]:
    return [range(first, count, POSTS_AT_ONCE) for first in range(POSTS_AT_ONCE)]


async def _posts(client: httpx.AsyncClient, numbers: range, tokens: int) -> None:
    for number in numbers:
        body = {"model": MODEL, "input": f"Count from {number}.", "background": True}
        sampled = {"max_output_tokens": tokens, "ignore_eos": True}
        (await client.post("/v1/responses", json={**body, **sampled})).raise_for_status()


async def _first_token(client: httpx.AsyncClient) -> float:
    body = {"model": MODEL, "input": "Hello!", "stream": True, "max_output_tokens": 8, "ignore_eos": True}
    begun, first = time.monotonic(), 0.0
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not first and line.startswith("event: response.output_text.delta"):
                first = time.monotonic() - begun
    return first


async def _rate(longhaul: Longhaul) -> float:
    """Tokens per second that are committed now."""
    counts: list[tuple[float, int]] = []
    for pause in (0.0, MEASURED_SECONDS):
        await asyncio.sleep(pause)
        async with longhaul.db.autocommit() as connection:
            counts.append((time.monotonic(), int((await connection.execute(text(_TOKENS))).scalar_one())))
    (begun, before), (ended, after) = counts
    return (after - before) / (ended - begun)


def _shown(seconds: float) -> float:
    return round(seconds, 3)


def ratios(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each variant's tokens/s of a backlog, compared with the last variant's."""
    by = {(row["Longhaul"], row["behind"]): float(str(row["tokens/s behind"]).replace(",", "") or 0) for row in rows}
    names = list(dict.fromkeys(row["Longhaul"] for row in rows))
    return [
        f"tokens/s behind {behind}: {name} has {by[name, behind] / by[names[-1], behind]:.3f} x {names[-1]}"
        for name in names[:-1]
        for behind in dict.fromkeys(row["behind"] for row in rows)
        if by[names[-1], behind]
    ]
