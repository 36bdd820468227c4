"""Alternating rounds: each contender gets the same load, one right after the other, while the others are held still.

SIGSTOP holds an engine and SIGCONT continues it. Starting an engine takes 20 seconds of CPU; a held one takes none, so
rounds of seconds can alternate.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from tests.bench.contenders.base import Contender
from tests.bench.measurement import measure_load
from tests.bench.metrics import Metric, value
from tests.bench.plan import Cell, Plan
from tests.bench.processes import ForeignEngine, refuse_foreign_engines
from tests.bench.results import Results, Sample

Say = Callable[[str], None]
T = TypeVar("T")
SHOWN = (Metric.TOKENS, Metric.TTFT_P50, Metric.INTER_P50, Metric.POST_P50, Metric.POST_P99, Metric.CPU)


class TooManyErrors(Exception):
    """A contender answered with errors, so its numbers would be of something else."""


class Comparison:
    """`allow_foreign_engine`: continue while a foreign engine runs, and mark the results."""

    def __init__(self, plan: Plan, results: Results, say: Say, *, allow_foreign_engine: bool = False) -> None:
        self._plan = plan
        self._results = results
        self._say = say
        self._allow_foreign_engine = allow_foreign_engine

    async def run(self, contenders: Sequence[Contender]) -> None:
        """All rounds. Raises ForeignEngine, TooManyErrors and CannotStart; what was measured until then is saved."""
        self._look(contenders)
        async with AsyncExitStack() as stack:
            stack.callback(keep_logs, contenders, self._results.folder / "logs")
            for contender in contenders:
                stack.push_async_callback(contender.stop)
                await contender.start()
                contender.freeze()
                self._say(f"{contender.name} is ready")
            for number in range(self._plan.rounds):
                for index, cell in enumerate(self._plan.cells):
                    for contender in rotated(contenders, number + index):
                        self._look(contenders)
                        await self._one(contender, cell, number)

    async def _one(self, contender: Contender, cell: Cell, number: int) -> None:
        contender.thaw()
        try:
            measured = await measure_load(contender, self._plan.load(cell))
        finally:
            contender.freeze()
        sample = Sample(contender.name, str(cell), number, measured)
        _check(sample)
        self._results.samples.append(sample)
        self._results.save()
        self._say(described(sample))

    def _look(self, contenders: Sequence[Contender]) -> None:
        try:
            refuse_foreign_engines({pid for contender in contenders for pid in contender.own()})
        except ForeignEngine:
            if not self._allow_foreign_engine:
                raise
            self._results.disturbed = True


def keep_logs(contenders: Sequence[Contender], folder: Path) -> None:
    """Copies the contenders' logs into the results' folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for contender in contenders:
        if contender.log.exists():
            shutil.copy(contender.log, folder)


def rotated(contenders: Sequence[T], by: int) -> list[T]:
    """The contenders in an order that changes with `by`: none is always first."""
    start = by % len(contenders) if contenders else 0
    return [*contenders[start:], *contenders[:start]]


def described(sample: Sample) -> str:
    """One line of progress."""
    values = [(metric, value(sample, metric)) for metric in SHOWN]
    values_text = ", ".join(f"{metric} {found:,.4g}" for metric, found in values if found is not None)
    return f"round {sample.round + 1}: {sample.cell:>22} {sample.contender:<12} {values_text}"


def _check(sample: Sample) -> None:
    figures = sample.measured.figures
    if figures.errors:
        raise TooManyErrors(f"{sample.contender}, {sample.cell}: {figures.errors} errors, {figures.complaints[0]}")
