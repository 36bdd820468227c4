"""`python -m tests.bench`: compares, measures, writes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from app.local.errors import LocalError
from config.settings import ConfigError
from tests.bench import batches, fair, fleet, page, path, placement
from tests.bench.contenders.bare import Bare
from tests.bench.contenders.base import CannotStart, Contender
from tests.bench.contenders.longhaul import Longhaul, Variant
from tests.bench.contenders.models import DEMO, ENGINE_ARGS, Served
from tests.bench.contenders.peer import Peer
from tests.bench.contenders.run_batch import RunBatch
from tests.bench.measurement import ClientFailed
from tests.bench.plan import Cell, Name, Plan
from tests.bench.processes import ForeignEngine, refuse_foreign_engines
from tests.bench.profiling import Profiler
from tests.bench.results import BUILD, Results
from tests.bench.rounds import Comparison, TooManyErrors
from tests.support.services import open_folder

FAILURES = (
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
        typer.Option(help="Measure only this cell: 'MODE CONCURRENCY', e.g. 'stream 64' (repeatable)."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Measure only this contender: bare, 'vllm serve', ... (repeatable)")
    ] = None,
    model: Annotated[Path, typer.Option(help="The folder of the model that all contenders serve.")] = DEMO,
    engine_args: Annotated[
        str, typer.Option(help='vLLM\'s, as JSON, beside those of the demo model: {"dtype": "bfloat16"}.')
    ] = "{}",
    variant: Variants = None,
    profile: Profile = None,
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Compare Longhaul with bare vLLM and `vllm serve`: the default."""
    if context.invoked_subcommand is not None:
        return
    plan = Plan.quick() if quick else Plan()
    plan = replace(plan, rounds=rounds or plan.rounds, length=length or plan.length)
    if cell:
        plan = replace(plan, cells=tuple(map(Cell.parse, cell)))
    served = Served(path=str(model.resolve()), engine_args={**ENGINE_ARGS, **json.loads(engine_args)})

    async def compare() -> None:
        results = Results.begin("run", rounds=plan.rounds, length=plan.length, profiled=profile)
        with open_folder() as folder:
            bare = [Bare(Name.BARE, folder, served), Bare(Name.CORE, folder, served, in_core=True)]
            contenders: list[Contender] = [*bare, Peer(Name.PEER, folder, served)]
            contenders += path.contenders(folder, served, variants_of(variant))
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


@cli.command("fair")
def fair_command(
    size: Annotated[float, typer.Option(min=0.001, help="Factor of how many responses are queued.")] = 1.0,
) -> None:
    """Measure whether the queue is fair, and what it costs with up to a million queued (ten minutes)."""

    async def measure() -> None:
        for results in await fair.measure(say, size):
            show(results)

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


@cli.command("batches")
def batches_command(
    lines: Annotated[int, typer.Option(min=1)] = batches.Sizes().lines,
    behind: Annotated[int, typer.Option(min=1, help="Lines of the batch behind streams.")] = batches.Sizes().behind,
    waiters: Annotated[int, typer.Option(min=2)] = batches.Sizes().waiters,
    rounds: Annotated[int, typer.Option(min=1)] = batches.Sizes().rounds,
    part: Annotated[list[batches.Part] | None, typer.Option(help="Measure only this part (repeatable).")] = None,
    step_ms: Annotated[
        float | None, typer.Option(min=1, help="Measure on the scripted engine, with steps of so many milliseconds.")
    ] = None,
    model: Annotated[Path, typer.Option(help="The folder of the model that all serve.")] = DEMO,
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Compare a batch with `vllm run-batch`, bare vLLM and POSTs, and measure streams and long polls beside batches."""
    step = None if step_ms is None else step_ms / 1000
    parts = part or tuple(batches.Part)
    sizes = batches.Sizes(lines=lines, behind=behind, waiters=waiters, rounds=rounds, step=step, parts=parts)

    async def measure() -> None:
        if not allow_foreign_engine:
            refuse_foreign_engines()
        name = batches.NAME if step is None else batches.PACED
        results, served = (
            Results.begin(name, lines=lines, behind=behind, step_ms=step_ms),
            sizes.served(model.resolve()),
        )
        with open_folder() as folder:
            longhaul = Longhaul(Name.LONGHAUL, folder, served, Variant(settings=sizes.settings))
            others: list[Contender] = []
            if step is None and batches.Part.BATCH in parts:
                others = [RunBatch(Name.RUN_BATCH, folder, served), Bare(Name.CORE, folder, served, in_core=True)]
            await batches.measure(say, sizes, results, longhaul, others)
        show(results)

    perform(measure)


@cli.command("write")
def write_command(
    results: Annotated[Path, typer.Option(help="Folder of the JSON results.")] = BUILD,
    docs: Annotated[Path, typer.Option(help="Folder of performance.md and scaling.md.")] = page.DOCS,
) -> None:
    """Write the results as tables into docs/internals/performance.md and scaling.md."""
    for file in page.write(results, docs):
        say(f"wrote {file}")


def show(results: Results) -> None:
    for line in page.report({results.name: results}):
        say(line)
    say(f"saved {results.save()}")


if __name__ == "__main__":
    cli()
