"""Many short background responses: what share of the time the engine's slots generate, while more are queued.

The scripted engine generates at a set rate in each slot, so slots x rate is all that it could do: the share is
what the worker makes of it. The first responses and the last ones find slots free, whoever feeds them; they count.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from tests.bench.load import Load, Mode
from tests.bench.prompts import SCRIPT
from tests.bench.results import Results
from tests.bench.scale.setup import Row, Setup, body, curves, per_thousand, put

SAYS = "2,048 background responses of 16 to 256 tokens in 256 slots of 50 tokens a second: the slots' share of the rate"
SIZES = (256, 128, 64, 32, 16)
SLOTS = 256
RATE = 50
CLIENTS = 16
TURNS = 8
"""Responses for each slot."""


async def rows(setup: Setup, sizes: Sequence[int]) -> AsyncIterator[Row]:
    async with setup.longhaul(tokens_per_second=float(RATE), max_num_seqs=SLOTS) as longhaul:
        for size in sizes:
            measured = await put(longhaul, Load("", Mode.FIRE, CLIENTS, TURNS * SLOTS, body(size), SCRIPT))
            figures = measured.figures
            yield {
                "tokens of each": size,
                "slots' ends/s": round(SLOTS * RATE / size),
                "responses/s": round(figures.ok / figures.seconds, 1),
                "share of the rate": round(figures.tokens / figures.seconds / (SLOTS * RATE), 3),
                **per_thousand(measured, figures.ok),
            }


def plots(results: Results) -> dict[str, str]:
    shares = {"share of the rate": "share"}
    return {"scale-fed": curves(results, "Share of the slots' rate", "slots' ends/s", "share", shares)}
