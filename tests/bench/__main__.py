"""`python -m tests.bench`: compares, measures, writes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from app.local.errors import LocalError
from config.settings import ConfigError
from tests.bench import fair, fleet, foreground, gpu, page, path, placement, restart, scale
from tests.bench.contenders.bare import Bare
from tests.bench.contenders.base import CannotStart, Contender
from tests.bench.contenders.longhaul import Variant
from tests.bench.contenders.models import Served
from tests.bench.contenders.peer import Peer
from tests.bench.gpu.card import NoCard, first_card
from tests.bench.gpu.shapes import SHAPES
from tests.bench.gpu.steps import planned
from tests.bench.measurement import ClientFailed
from tests.bench.plan import Cell, Name, Plan
from tests.bench.processes import ForeignEngine, refuse_foreign_engines
from tests.bench.profiling import Profiler
from tests.bench.results import BUILD, Results
from tests.bench.rounds import Comparison, TooManyErrors
from tests.support.services import open_folder

FAILURES = (
    scale.MeasurementFailed,
    CannotStart,
    ClientFailed,
    ConfigError,
    ForeignEngine,
    LocalError,
    TooManyErrors,
    OSError,
    ValueError,
)

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", help="Measure another Longhaul beside this one: NAME:code=FOLDER,VARIABLE=VALUE,..."),
]
AllowForeignEngine = Annotated[bool, typer.Option(help="Continue while a foreign engine runs; the results say so.")]
Profile = Annotated[
    list[str] | None, typer.Option(help="Record this role of Longhaul (api, worker, ...) with py-spy; needs root.")
]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def perform(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs `work` to its end. SIGTERM ends it as Ctrl-C does; an expected failure prints one line and exits with 1."""

    async def main() -> None:
        me = asyncio.current_task()
        assert me is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
        await work()

    try:
        asyncio.run(main())
    except FAILURES as error:
        say(f"bench: {error}")
        raise typer.Exit(1) from None
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None


def variants_of(words: list[str] | None) -> dict[str, Variant]:
    """Longhaul as it is here, and the `--variant`s."""
    return {Name.LONGHAUL.value: Variant(), **dict(map(Variant.parse, words or ()))}


@cli.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    quick: Annotated[bool, typer.Option(help="Measure only what the targets need, in three short rounds.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1)] = None,
    length: Annotated[float | None, typer.Option(min=0.01, help="Factor of the length of every round.")] = None,
    cell: Annotated[
        list[str] | None,
        typer.Option(help="Measure only this cell: 'MODE CONCURRENCY [long]', e.g. 'stream 64' (repeatable)."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Measure only this contender: bare, 'vllm serve', ... (repeatable)")
    ] = None,
    variant: Variants = None,
    profile: Profile = None,
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Compare Longhaul with bare vLLM and `vllm serve`: the default."""
    if context.invoked_subcommand is not None:
        return
    plan = Plan.quick() if quick else Plan.full()
    plan = replace(plan, rounds=rounds or plan.rounds, length=length or plan.length)
    if cell:
        plan = replace(plan, cells=tuple(map(Cell.parse, cell)))

    async def compare() -> None:
        results = Results.begin("run", rounds=plan.rounds, length=plan.length, profiled=profile)
        with open_folder() as folder:
            bare = [Bare(Name.BARE, folder, Served()), Bare(Name.CORE, folder, Served(), in_core=True)]
            contenders: list[Contender] = [*bare, Peer(Name.PEER, folder, Served())]
            contenders += path.contenders(folder, Served(), variants_of(variant))
            chosen = [each for each in contenders if not only or each.name in only]
            await Comparison(
                plan, results, say, Profiler(profile or ()), allow_foreign_engine=allow_foreign_engine
            ).run(chosen)
        show(results)

    perform(compare)


@cli.command("path")
def path_command(
    streams: int = path.Sizes().streams,
    rate: Annotated[float, typer.Option(help="Tokens per second of each stream.")] = path.Sizes().rate,
    seconds: Annotated[float, typer.Option(help="Duration of each stream at that rate.")] = path.Sizes().seconds,
    tokens: Annotated[int, typer.Option(help="Tokens of each stream without a rate.")] = path.Sizes().tokens,
    tokens_per_delta: int = 1,
    rounds: int = 3,
    variant: Variants = None,
    profile: Profile = None,
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Measure our own path alone, on the scripted engine, with and without a token rate."""
    sizes = path.Sizes(streams, rate, seconds, tokens, tokens_per_delta, rounds)

    async def measure() -> None:
        results = Results.begin("path", streams=streams, tokens_per_delta=tokens_per_delta, profiled=profile)
        for plan, served, settings in sizes.runs():
            with open_folder() as folder:
                chosen = path.contenders(folder, served, variants_of(variant), settings)
                await Comparison(
                    plan, results, say, Profiler(profile or ()), allow_foreign_engine=allow_foreign_engine
                ).run(chosen)
        show(results)

    perform(measure)


@cli.command("scale")
def scale_command(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(scale.MEASUREMENTS)}; all of them.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Sizes to measure instead of the default ones: 1,10,100")] = None,
    variant: Variants = None,
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Measure how cost grows with size."""
    chosen = names or list(scale.MEASUREMENTS)
    unknown = set(chosen) - set(scale.MEASUREMENTS)
    if unknown:
        raise typer.BadParameter(f"there is no measurement {sorted(unknown)[0]!r}", param_hint="names")
    numbers = [int(size) for size in sizes.split(",")] if sizes else None

    async def measure() -> None:
        for name in chosen:
            if not allow_foreign_engine:
                refuse_foreign_engines()
            for label, which in variants_of(variant).items():
                await scale.measure(name, numbers, say, label, which)

    perform(measure)


@cli.command("fleet")
def fleet_command(
    size: Annotated[float, typer.Option(min=0.01, help="Factor of how often each thing is done.")] = 1.0,
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Measure what a worker costs the shared parts, and compute fleets of up to a thousand workers (minutes)."""

    async def measure() -> None:
        if not allow_foreign_engine:
            refuse_foreign_engines()
        found = await fleet.measure(say, size=size)
        for line in page.report(found):
            say(line)

    perform(measure)


@cli.command("restart")
def restart_command(times: Annotated[int, typer.Option(min=1)] = restart.TIMES) -> None:
    """Measure how soon Longhaul answers after `longhaul up`, and after kill -9 of its API (two minutes)."""

    async def measure() -> None:
        with open_folder() as folder:
            show(await restart.measure(say, times, folder))

    perform(measure)


@cli.command("fair")
def fair_command(
    size: Annotated[float, typer.Option(min=0.001, help="Factor of how many responses are queued.")] = 1.0,
) -> None:
    """Measure whether the queue is fair, and what it costs with up to a million queued (ten minutes)."""

    async def measure() -> None:
        for results in await fair.measure(say, size):
            show(results)

    perform(measure)


@cli.command("foreground")
def foreground_command(
    variant: Variants = None,
    scripted: Annotated[bool, typer.Option(help="With the scripted engine in place of the demo model.")] = False,
    size: Annotated[float, typer.Option(min=0.01, help="Factor of how much waits in the background.")] = 1.0,
) -> None:
    """Measure the first token of a stream behind a backlog, and the backlog's tokens per second (five minutes)."""
    sizes = foreground.Sizes()
    sizes = replace(sizes, short=round(sizes.short * size), long=round(sizes.long * size))

    async def measure() -> None:
        with open_folder() as folder:
            model = foreground.served(with_model=not scripted)
            results = await foreground.measure(say, folder, variants_of(variant), model, sizes)
        for line in foreground.ratios(results.rows):
            say(line)
        say(f"saved {results.save()}")

    perform(measure)


@cli.command("placement")
def placement_command(
    agents: Annotated[int, typer.Option(min=1)] = placement.Load().agents,
    turns: Annotated[int, typer.Option(min=1)] = placement.Load().turns,
) -> None:
    """Measure what placement is worth to agents on eight workers, whose engines are arithmetic (eight minutes)."""

    async def measure() -> None:
        show(await placement.measure(say, placement.Load(agents=agents, turns=turns)))

    perform(measure)


@cli.command("gpu")
def gpu_command(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    length: Annotated[float, typer.Option(min=0.01, help="Factor of the length of every round.")] = 1.0,
    shape: Annotated[
        list[str] | None,
        typer.Option(help=f"Of {', '.join(shape.name for shape in SHAPES)} (repeatable); both of them."),
    ] = None,
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Compare on one GPU, with the shapes of real models and dummy weights (an hour). Ends with 2 without a GPU."""
    unknown = set(shape or ()) - {each.name for each in SHAPES}
    if unknown:
        raise typer.BadParameter(f"there is no shape {sorted(unknown)[0]!r}", param_hint="--shape")
    try:
        card = first_card()
    except NoCard as error:
        say(f"bench: {error}")
        raise typer.Exit(2) from None
    plan = planned(card.memory, rounds, [each for each in SHAPES if not shape or each.name in shape])
    os.environ |= card.environment  # of all contenders

    async def measure() -> None:
        async for results in gpu.measure(say, card, plan, length, allow_foreign_engine=allow_foreign_engine):
            show(results)

    perform(measure)


@cli.command("write")
def write_command(
    results: Annotated[Path, typer.Option(help="Folder of the JSON results.")] = BUILD,
    docs: Annotated[Path, typer.Option(help="Folder of performance.md, scaling.md and img/.")] = page.DOCS,
) -> None:
    """Write the results as tables and plots into docs/performance.md and docs/scaling.md."""
    for file in page.write(results, docs):
        say(f"wrote {file}")


def show(results: Results) -> None:
    for line in page.report({results.name: results}):
        say(line)
    say(f"saved {results.save()}")


if __name__ == "__main__":
    cli()
