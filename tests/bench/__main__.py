"""`python -m tests.bench`: compares, measures, writes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from app.local.errors import LocalError
from config.models import load_models
from config.settings import CHECKOUT, ConfigError
from tests.bench import attached, neighbours, page, path, tables, told
from tests.bench.contenders.base import CannotStart, Contender
from tests.bench.contenders.longhaul import Variant
from tests.bench.contenders.models import DEMO, ENGINE_ARGS, Served
from tests.bench.contenders.peer import Peer
from tests.bench.measurement import ClientFailed
from tests.bench.plan import Cell, Name, Plan
from tests.bench.processes import ForeignEngine
from tests.bench.results import BUILD, Results
from tests.bench.rounds import Comparison, TooManyErrors
from tests.support.services import open_folder
from tests.support.vllm_serve import VllmServe

FAILURES = (CannotStart, ClientFailed, ConfigError, ForeignEngine, LocalError, TooManyErrors, OSError, ValueError)

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", help="Measure another Longhaul beside this one: NAME:code=FOLDER,VARIABLE=VALUE,..."),
]
AllowForeignEngine = Annotated[bool, typer.Option(help="Continue while a foreign engine runs; the results say so.")]


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
        list[str] | None, typer.Option(help="Measure only this contender: longhaul, 'vllm serve', ... (repeatable)")
    ] = None,
    model: Annotated[Path, typer.Option(help="The folder of the model that all contenders serve.")] = DEMO,
    engine_args: Annotated[
        str, typer.Option(help='vLLM\'s, as JSON, beside those of the demo model: {"dtype": "bfloat16"}.')
    ] = "{}",
    variant: Variants = None,
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Compare Longhaul with `vllm serve`: the default."""
    if context.invoked_subcommand is not None:
        return
    plan = Plan.quick() if quick else Plan()
    plan = replace(plan, rounds=rounds or plan.rounds, length=length or plan.length)
    if cell:
        plan = replace(plan, cells=tuple(map(Cell.parse, cell)))
    served = Served(path=str(model.resolve()), engine_args={**ENGINE_ARGS, **json.loads(engine_args)})

    async def compare() -> None:
        results = Results.begin("run", rounds=plan.rounds, length=plan.length)
        with open_folder() as folder:
            contenders: list[Contender] = [Peer(Name.PEER, folder, served)]
            contenders += path.contenders(folder, served, variants_of(variant))
            chosen = [each for each in contenders if not only or each.name in only]
            await Comparison(plan, results, say, allow_foreign_engine=allow_foreign_engine).run(chosen)
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
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Measure our own path alone, on the scripted engine, with and without a token rate."""
    sizes = path.Sizes(streams, rate, seconds, tokens, tokens_per_delta, rounds)

    async def measure() -> None:
        results = Results.begin("path", streams=streams, tokens_per_delta=tokens_per_delta)
        for plan, served, settings in sizes.runs():
            with open_folder() as folder:
                chosen = path.contenders(folder, served, variants_of(variant), settings)
                await Comparison(plan, results, say, allow_foreign_engine=allow_foreign_engine).run(chosen)
        show(results)

    perform(measure)


@cli.command("neighbours")
def neighbours_command(
    upstream: Annotated[
        str | None,
        typer.Option(help="A `vllm serve --enable-scale-out` that runs. By default one with the demo model."),
    ] = None,
    streams: Annotated[int, typer.Option(help="Interactive clients.")] = neighbours.Sizes().streams,
    seconds: Annotated[float, typer.Option(help="How long they ask in each scene.")] = neighbours.Sizes().seconds,
    lines: Annotated[int, typer.Option(help="Batch lines behind them.")] = neighbours.Sizes().lines,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = neighbours.Sizes().tokens,
) -> None:
    """Measure what batch lines cost interactive requests, straight to vLLM and through Longhaul. Prints a table."""
    sizes = neighbours.Sizes(streams, seconds, lines, tokens)

    async def measure() -> None:
        with open_folder() as folder, ExitStack() as stack:
            server, url = None, upstream
            if url is None:
                demo = load_models(CHECKOUT / "config" / "models.toml").models[0]
                server = stack.enter_context(VllmServe(folder, demo))
                await asyncio.to_thread(server.start)
                url = server.url
            say(await neighbours.measure(url.rstrip("/"), server, folder, sizes, say))

    perform(measure)


@cli.command("told")
def told_command(
    rate: Annotated[float, typer.Option(help="Endings a second.")] = told.Sizes().rate,
    seconds: Annotated[float, typer.Option(help="Duration of each scene.")] = told.Sizes().seconds,
    rounds: Annotated[int, typer.Option(min=1, help="Of the two scenes, in turn.")] = told.Sizes().rounds,
) -> None:
    """Measure how soon a webhook tells of an end, alone and beside a dead endpoint. Prints a table."""

    async def measure() -> None:
        with open_folder() as folder:
            say(await told.measure(folder, told.Sizes(rate, seconds, rounds), say))

    perform(measure)


@cli.command("attached")
def attached_command(
    rounds: int = 2,
    length: Annotated[float, typer.Option(help="Factor of the length of every round.")] = 0.5,
    streams: Annotated[int, typer.Option(help="Readers while a worker, and then the server, are killed.")] = 8,
    allow_foreign_engine: AllowForeignEngine = False,
) -> None:
    """Measure Longhaul in front of a vLLM that runs: beside that vLLM, and beside an engine of its own."""
    plan = Plan(attached.CELLS, rounds, length)

    async def measure() -> None:
        results = Results.begin("attached", rounds=rounds, length=length)
        with open_folder() as folder:
            chosen = attached.contenders(folder, Served(engine_args=ENGINE_ARGS))
            await Comparison(plan, results, say, allow_foreign_engine=allow_foreign_engine).run(chosen)
        say("\n".join(tables.comparison(results)))
        with open_folder() as folder:
            say(await attached.takeovers(folder, streams))

    perform(measure)


@cli.command("write")
def write_command(
    results: Annotated[Path, typer.Option(help="Folder of the JSON results.")] = BUILD,
    docs: Annotated[Path, typer.Option(help="Folder of performance.md.")] = page.DOCS,
) -> None:
    """Write the results as tables into docs/internals/performance.md."""
    say(f"wrote {page.write(results, docs)}")


def show(results: Results) -> None:
    for _, lines in page.blocks({results.name: results}):
        say("\n".join((*lines, "")))
    say(f"saved {results.save()}")


if __name__ == "__main__":
    cli()
