"""The `longhaul` command."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.local import programs
from app.local.commands.tenants_command import keys, limits, projects
from app.local.commands.tools_command import tools
from app.local.errors import LocalError
from app.local.home import with_running_services
from app.local.procfile import PROCFILE
from app.local.reporting import one_line
from config.models import load_models
from config.settings import ConfigError, Settings, load_settings, unknown_variables

if TYPE_CHECKING:
    from app.store.database import Database

cli = typer.Typer(
    help="A self-hosted Responses API whose work outlives connections, processes and GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli.add_typer(keys, name="keys")
cli.add_typer(limits, name="limits")
cli.add_typer(projects, name="projects")
cli.add_typer(tools, name="tools")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("longhaul"))
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")


@cli.callback()
def _options(_: Annotated[bool, _VERSION] = False) -> None:
    """What every command takes."""


def _settings(**overrides: Any) -> Settings:
    """The settings; warns of LONGHAUL_* variables that are none. Raises ConfigError."""
    settings = load_settings(**overrides)
    for name in unknown_variables(os.environ):
        typer.echo(f"longhaul: {name} is no setting and has no effect; docs/settings.md lists them all", err=True)
    return settings


@cli.command()
def up(
    model: Annotated[
        str | None,
        typer.Option(
            help="Serve one model: a name of the models file, a folder, or a hub id. By default, all of the file."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes for each model.")] = 1,
    port: Annotated[int | None, typer.Option(help="Port of the API. By default, LONGHAUL_PORT.")] = None,
    procfile: Annotated[Path, typer.Option(help="File that names the processes to run.")] = PROCFILE,
) -> None:
    """Start everything on this machine, and keep it running until Ctrl-C."""
    from app.local.up import UpOptions
    from app.local.up import up as run

    with one_line():
        overrides: dict[str, Any] = {} if port is None else {"port": port}
        settings = _settings(**overrides)
        asyncio.run(run(settings, UpOptions(model, workers, procfile)))


def _become(program: Callable[[Settings], programs.Launch]) -> None:
    with one_line():
        settings = _settings()
        program(settings).become(settings)


@cli.command()
def api() -> None:
    """Run the HTTP API."""
    gc.disable()  # Until `freeze_gc`. Collections during the imports find nothing and take a sixth of the start.
    _become(programs.api)


@cli.command()
def worker() -> None:
    """Run a worker with the engine of one model."""
    _become(programs.worker)


@cli.command()
def maintenance() -> None:
    """Run maintenance: send lost messages again, take over from dead workers, delete what is old."""
    _become(programs.maintenance)


@cli.command()
def flower() -> None:
    """Run Flower, the operators' view of workers and tasks."""
    _become(programs.flower)


@cli.command()
def migrate() -> None:
    """Bring the database's schema up to date. With LONGHAUL_AUTH=keys, make the first admin key."""
    with one_line():
        asyncio.run(_migrate(_settings()))
    if os.environ.get("HONCHO_PROCESS_NAME"):
        stop_signals = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
        typer.echo("the schema is up to date; waiting for the end, because honcho stops every process when one ends")
        sys.stdout.flush()
        signal.sigwait(stop_signals)


async def _migrate(settings: Settings) -> None:
    from app.store.database import Database, StoreBusy, StoreUnavailable
    from app.store.migrate import migrate as run

    db = Database(settings.database_dsn)
    try:
        await run(db)
        if settings.auth == "keys":
            await _make_first_key(settings, db)
    except (ConfigError, LocalError):
        raise
    except StoreBusy as error:
        raise LocalError(f"DATABASE_URL: other transactions hold the tables ({error}); try again later") from None
    except StoreUnavailable as error:
        raise LocalError(f"DATABASE_URL: Postgres cannot be reached ({error})") from None
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise LocalError(f"the database's schema cannot be brought up to date: {reason}") from None
    finally:
        await db.close()


async def _make_first_key(settings: Settings, db: Database) -> None:
    from app.local.commands.tenants import make_first_key
    from app.local.home import Home

    home = Home.prepare(settings.home)
    if await make_first_key(db, home):
        typer.echo(f"the first admin key lies in {home.admin_key_file}")


@cli.command()
def rotate_key() -> None:
    """Seal with a new key from now on; what was sealed before stays readable. Takes two minutes."""
    with one_line():
        number = asyncio.run(_rotate_key(with_running_services(_settings())))
        typer.echo(f"key {number} seals now")


async def _rotate_key(settings: Settings) -> int:
    from app.store.database import Database, StoreUnavailable
    from app.store.keys import rotate

    db = Database(settings.database_dsn)
    try:
        return await rotate(db)
    except StoreUnavailable as error:
        raise LocalError(f"DATABASE_URL: Postgres cannot be reached ({error})") from None
    finally:
        await db.close()


@cli.command()
def models() -> None:
    """List the models of the models file."""
    with one_line():
        for model in load_models(_settings().models).models:
            typer.echo(f"{model.name}\t{model.engine}\t{model.path or '-'}\tqueue {model.queue}")


def main() -> None:
    """The console script. Ctrl-C during a short command prints no traceback."""
    try:
        cli()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
