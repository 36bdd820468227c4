"""Qwen3-8B and gpt-oss-20b by shape on one GPU, with dummy weights: streams, background throughput, a takeover.

It downloads nothing: `model_folder.py` writes config, tokenizer and chat template.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import groupby
from pathlib import Path

from tests.bench.contenders.bare import Bare
from tests.bench.contenders.base import Contender
from tests.bench.contenders.longhaul import Longhaul, Variant
from tests.bench.contenders.models import Served
from tests.bench.contenders.peer import Peer
from tests.bench.gpu import takeover
from tests.bench.gpu.card import Card
from tests.bench.gpu.model_folder import write_model
from tests.bench.gpu.steps import TAKEOVER, GpuPlan, Step
from tests.bench.plan import Name, Plan
from tests.bench.results import BUILD, Results
from tests.bench.rounds import Comparison, Say, keep_logs
from tests.support.services import open_folder

PREFIX = "gpu-"
"""Of the names of the results; the name of the shape follows."""
SETTINGS = {"LONGHAUL_LEASE_SECONDS": "30"}
"""The default: no contender is held still here."""


async def measure(
    say: Say, card: Card, plan: GpuPlan, length: float, *, allow_foreign_engine: bool = False, build: Path = BUILD
) -> AsyncIterator[Results]:
    """Performs the steps; yields the results of each shape. Raises as `Comparison.run` does, and TakeoverFailed."""
    for line in plan.left_out:
        say(line)
    for shape, steps in groupby(plan.steps, key=lambda step: step.shape):
        left_out = [line for line in plan.left_out if line.startswith(shape.name)]
        results = Results.begin(f"{PREFIX}{shape.name}", build, gpu=card.name, left_out=left_out)
        comparison = Comparison(Plan((), length=length), results, say, allow_foreign_engine=allow_foreign_engine)
        with open_folder() as folder:
            served = plan.served(shape, str(write_model(shape, folder / "model")))
            for (number, name), turn in groupby(steps, key=lambda step: (step.round, step.contender)):
                place = folder / f"{number}-{name}"
                place.mkdir()
                await _turn(comparison, results, _contender(name, place, served), turn)
        yield results


def _contender(name: Name, folder: Path, served: Served) -> Contender:
    if name is Name.LONGHAUL:
        return Longhaul(name, folder, served, Variant(settings=SETTINGS))
    return Peer(name, folder, served) if name is Name.PEER else Bare(name, folder, served)


async def _turn(comparison: Comparison, results: Results, contender: Contender, steps: Iterable[Step]) -> None:
    """Starts the contender, takes its steps of one round, and ends it."""
    try:
        await contender.start()
        for step in steps:
            if step.cell is TAKEOVER:
                assert isinstance(contender, Longhaul)
                results.rows.append(await takeover.measure(contender, step.cell))
                results.save()
            else:
                await comparison.alone(contender, step.cell, step.round)
    finally:
        await contender.stop()
        keep_logs([contender], results.folder / "logs")
