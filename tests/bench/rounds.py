"""Alternating rounds: everybody is asked the same, one right after the other, while the others are held still.

Engines are held by SIGSTOP and go on by SIGCONT. Starting one takes 20 seconds of CPU, so rounds that start and stop
would be few, and far apart in time; held still an engine takes nothing, and rounds of seconds can alternate.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from tests.bench.asked import ask
from tests.bench.contenders.base import Contender
from tests.bench.metrics import Metric, value
from tests.bench.plan import Cell, Plan
from tests.bench.processes import ForeignEngine, refuse_foreign_engines
from tests.bench.profiling import Profiler
from tests.bench.results import Results, Sample

Say = Callable[[str], None]
SHOWN = (Metric.TOKENS, Metric.TTFT_P50, Metric.INTER_P50, Metric.POST_P50, Metric.POST_P99, Metric.CPU)


class TooManyErrors(Exception):
    """A contender did not answer as it should: its numbers would be of something else."""


class Comparison:
    """`anyway`: go on while a foreign engine is alive, and say so in the results."""

    def __init__(
        self, plan: Plan, results: Results, say: Say, profiler: Profiler | None = None, *, anyway: bool = False
    ) -> None:
        self._plan = plan
        self._results = results
        self._say = say
        self._profiler = profiler or Profiler()
        self._anyway = anyway

    async def run(self, contenders: Sequence[Contender]) -> None:
        """All rounds. Raises ForeignEngine, TooManyErrors and CannotStart; what was measured until then is saved."""
        self._look(contenders)
        async with AsyncExitStack() as stack:
            stack.callback(_keep_logs, contenders, self._results.folder / "logs")
            for contender in contenders:
                stack.push_async_callback(contender.stop)
                await contender.start()
                contender.freeze()
                self._say(f"{contender.name} is up")
            for number in range(self._plan.rounds):
                for place, cell in enumerate(self._plan.cells):
                    able = [contender for contender in contenders if cell.mode in contender.modes]
                    for contender in rotated(able, number + place):
                        self._look(contenders)
                        await self._one(contender, cell, number)

    async def _one(self, contender: Contender, cell: Cell, number: int) -> None:
        contender.thaw()
        try:
            recording = self._profiler.recording(contender, f"{cell} {number + 1}")
            asked = await ask(contender, self._plan.load(cell, number), recording)
        finally:
            contender.freeze()
        sample = Sample(contender.name, str(cell), number, asked)
        _check(sample)
        self._results.samples.append(sample)
        self._results.save()
        self._say(described(sample))

    def _look(self, contenders: Sequence[Contender]) -> None:
        try:
            refuse_foreign_engines({pid for contender in contenders for pid in contender.own()})
        except ForeignEngine:
            if not self._anyway:
                raise
            self._results.disturbed = True


def _keep_logs(contenders: Sequence[Contender], folder: Path) -> None:
    """What they said last, for whoever wonders."""
    folder.mkdir(parents=True, exist_ok=True)
    for contender in contenders:
        if contender.log.exists():
            shutil.copy(contender.log, folder)


def rotated(contenders: Sequence[Contender], by: int) -> list[Contender]:
    """Nobody is always the first."""
    start = by % len(contenders) if contenders else 0
    return [*contenders[start:], *contenders[:start]]


def described(sample: Sample) -> str:
    """One line for whoever waits."""
    values = [(metric, value(sample, metric)) for metric in SHOWN]
    told = ", ".join(f"{metric} {found:,.4g}" for metric, found in values if found is not None)
    return f"round {sample.round + 1}: {sample.cell:>22} {sample.contender:<12} {told}"


def _check(sample: Sample) -> None:
    figures = sample.asked.figures
    if figures.errors:
        raise TooManyErrors(f"{sample.contender}, {sample.cell}: {figures.errors} errors, {figures.complaints[0]}")
