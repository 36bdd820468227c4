"""Whether the queue is fair, and what that costs: real Postgres, Valkey and Flower, worked off by slots without an
engine."""

from __future__ import annotations

from tests.bench.fair import questions, sizes
from tests.bench.fair.rig import Say, started_rig
from tests.bench.results import BUILD, Results

NAME = "fair"
SIZES = "fair-sizes"


async def measure(say: Say, size: float = 1.0) -> tuple[Results, Results]:
    """Returns what the questions found, and what long queues weigh. `size` shrinks how many responses are queued.

    Raises AssertionError if something does not come within minutes.
    """
    found, weighed = Results.begin(NAME, BUILD, size=size), Results.begin(SIZES, BUILD, size=size)
    async with started_rig(found, say, size) as rig:
        asked = (questions.passing, questions.weights, questions.split, questions.classes, questions.alone)
        for question in (*asked, questions.flushes, sizes.many_flows):
            await rig.empty()
            await question(rig)
        await sizes.sizes(rig, weighed)
    return found, weighed
