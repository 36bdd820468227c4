"""Whether the queue is fair, and what that costs: real Postgres, Valkey and Flower, worked off by slots without an
engine."""

from __future__ import annotations

from tests.bench.fair import questions, sizes
from tests.bench.fair.rig import Say, started_rig
from tests.bench.results import BUILD, Results
from tests.bench.svg import lines

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


def plots(results: Results) -> dict[str, str]:
    """The tokens of two projects with weights 3 and 1."""
    points = results.about.get("tokens", [])
    series = {
        "weight 3": [(claims, a) for claims, a, _ in points],
        "weight 1": [(claims, b) for claims, _, b in points],
    }
    return {"fair-shares": lines("Tokens of two projects", "claims", "tokens", series)} if points else {}
