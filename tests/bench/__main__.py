"""`python -m tests.bench`: compares, measures, writes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from app.local.errors import LocalError
from config.settings import ConfigError
from tests.bench import page, path
from tests.bench.contenders.base import CannotStart, Contender
from tests.bench.contenders.longhaul import Variant
from tests.bench.contenders.models import DEMO, Served
from tests.bench.contenders.peer import Peer
from tests.bench.measurement import ClientFailed
from tests.bench.plan import Cell, Name, Plan
from tests.bench.processes import ForeignEngine
from tests.bench.results import BUILD, Results
from tests.bench.rounds import Comparison, TooManyErrors
from tests.support.services import open_folder

FAILURES = (CannotStart, ClientFailed, ConfigError, ForeignEngine, LocalError, TooManyErrors, OSError, ValueError)

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Variants = Annotated[
    list[str] | None,
    typer.Option("--variant", help="Measure another Longhaul beside this one: NAME:code=FOLDER,VARIABLE=VALUE,..."),
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
    cell: Annotated[
        list[str] | None,
        typer.Option(help="Measure only this cell: 'MODE CONCURRENCY', e.g. 'stream 64' (repeatable)."),
    ] = None,
    model: Annotated[Path, typer.Option(help="The folder of the model that all contenders serve.")] = DEMO,
    variant: Variants = None,
) -> None:
    """Compare Longhaul with `vllm serve`: the default."""
    if context.invoked_subcommand is not None:
        return
    plan = Plan.quick() if quick else Plan()
    plan = replace(plan, rounds=rounds or plan.rounds)
    if cell:
        plan = replace(plan, cells=tuple(map(Cell.parse, cell)))
    served = Served(path=str(model.resolve()))

    async def compare() -> None:
        results = Results.begin("run", rounds=plan.rounds, length=plan.length)
        with open_folder() as folder:
            contenders: list[Contender] = [Peer(Name.PEER, folder, served)]
            contenders += path.contenders(folder, served, variants_of(variant))
            await Comparison(plan, results, say).run(contenders)
        show(results)

    perform(compare)


@cli.command("path")
def path_command(variant: Variants = None) -> None:
    """Measure our own path alone, on the scripted engine, with and without a token rate."""

    async def measure() -> None:
        results = Results.begin("path", streams=path.STREAMS)
        for plan, served, settings in path.runs():
            with open_folder() as folder:
                chosen = path.contenders(folder, served, variants_of(variant), settings)
                await Comparison(plan, results, say).run(chosen)
        show(results)

    perform(measure)


@cli.command("write")
def write_command() -> None:
    """Write the results as tables into docs/internals/performance.md."""
    say(f"wrote {page.write(BUILD)}")


def show(results: Results) -> None:
    for _, lines in page.blocks({results.name: results}):
        say("\n".join((*lines, "")))
    say(f"saved {results.save()}")


if __name__ == "__main__":
    cli()
