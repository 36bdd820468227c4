"""The `longhaul` command."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from app.local import programs
from app.local.errors import LocalError
from app.local.tools_command import tools
from config.models import load_models
from config.settings import CHECKOUT, ConfigError, Settings, load_settings

CONFIG_STATUS = 2
FAILED_STATUS = 1

cli = typer.Typer(
    help="A self-hosted Responses API whose work outlives connections, processes and GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli.add_typer(tools, name="tools")


@contextmanager
def _one_line() -> Iterator[None]:
    """What is wrong for a user becomes one line on stderr and a status: 2 for settings, 1 for the machine."""
    try:
        yield
    except (ConfigError, LocalError) as error:
        typer.echo(f"longhaul: {error}", err=True)
        raise typer.Exit(CONFIG_STATUS if isinstance(error, ConfigError) else FAILED_STATUS) from None


@cli.command()
def up(
    model: Annotated[
        str | None, typer.Option(help="Serve this one: a name of the models file, a folder, or a hub id.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes for each model.")] = 1,
    port: Annotated[int | None, typer.Option(help="In place of LONGHAUL_PORT.")] = None,
    procfile: Annotated[Path, typer.Option(help="The processes to run.")] = CHECKOUT / "Procfile",
) -> None:
    """Start everything on this machine, and keep it running until Ctrl-C."""
    from app.local.up import UpOptions
    from app.local.up import up as run

    with _one_line():
        overrides: dict[str, Any] = {} if port is None else {"port": port}
        settings = load_settings(**overrides)
        asyncio.run(run(settings, UpOptions(model, workers, procfile)))


def _become(program: Callable[[Settings], programs.Launch]) -> None:
    with _one_line():
        settings = load_settings()
        program(settings).become(settings)


@cli.command()
def api() -> None:
    """Run the HTTP API."""
    _become(programs.api)


@cli.command()
def worker() -> None:
    """Run a worker with the engine of one model."""
    _become(programs.worker)


@cli.command()
def maintenance() -> None:
    """Run the loop that finds what was lost."""
    _become(programs.maintenance)


@cli.command()
def flower() -> None:
    """Run Flower, the operators' window."""
    _become(programs.flower)


@cli.command()
def migrate() -> None:
    """Bring the database's schema up to date."""
    with _one_line():
        asyncio.run(_migrate(load_settings()))
    if os.environ.get("HONCHO_PROCESS_NAME"):
        stay = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, stay)
        typer.echo("the schema is up to date; staying, for honcho stops all when one ends")
        sys.stdout.flush()
        signal.sigwait(stay)


async def _migrate(settings: Settings) -> None:
    from app.store.database import Database, StoreUnavailable
    from app.store.migrate import migrate as run

    db = Database(settings.database_dsn)
    try:
        await run(db)
    except StoreUnavailable as error:
        raise LocalError(f"DATABASE_URL: Postgres cannot be reached ({error})") from None
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise LocalError(f"the database's schema cannot be brought up to date: {reason}") from None
    finally:
        await db.close()


@cli.command()
def models() -> None:
    """List the models of the models file."""
    with _one_line():
        for model in load_models(load_settings().models).models:
            typer.echo(f"{model.name}\t{model.engine}\t{model.path or '-'}\tqueue {model.queue}")


def main() -> None:
    """The console script. Ctrl-C during a short command is no error worth a traceback."""
    try:
        cli()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
