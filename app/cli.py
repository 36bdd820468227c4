"""The `longhaul` command."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from app.local import programs
from app.local.commands import tools
from app.local.errors import LocalError
from app.local.home import running_workers, with_running_services
from app.local.procfile import PROCFILE
from config.model_files import description
from config.models import load_models
from config.settings import ConfigError, Settings, load_settings, unknown_variables
from config.version import VERSION

_LAZY_GROUPS = ("audit", "keys", "limits", "projects", "responses")
"""Groups of commands whose imports take half a second: modules of `app.local.commands`."""
_LAZY_COMMANDS = {
    **dict.fromkeys(("queue", "status", "why", "workers"), "views"),
    "doctor": "doctor.command",
    **dict.fromkeys(("drain", "undrain", "pause", "resume", "pauses"), "steering"),
}
"""Commands of operators, with their modules."""


class Commands(TyperGroup):
    """All commands. An error that the user can mend becomes one line on stderr and a status: 2 for settings."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except (ConfigError, LocalError) as error:
            typer.echo(f"longhaul: {error}", err=True)
            raise typer.Exit(2 if isinstance(error, ConfigError) else error.status) from None

    def list_commands(self, context: Any) -> list[str]:
        return [*super().list_commands(context), *_LAZY_GROUPS, *_LAZY_COMMANDS]

    def get_command(self, context: Any, name: str) -> Any:
        if name not in (*_LAZY_GROUPS, *_LAZY_COMMANDS):
            return super().get_command(context, name)
        group = get_group(import_module(f"app.local.commands.{_LAZY_COMMANDS.get(name, name)}").commands)
        if name in _LAZY_COMMANDS:
            return group.commands[name]
        group.name = name
        return group


cli = typer.Typer(
    cls=Commands,
    help="A self-hosted Responses API whose work outlives connections, processes and GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cli.add_typer(tools.commands, name="tools")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


_VERSION = typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")


@cli.callback()
def _options(_: Annotated[bool, _VERSION] = False) -> None:
    """The options of every command."""


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
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", help="Serve a model that `vllm serve --enable-scale-out` has there; once for each."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of that model's tokenizer, if the server has it from elsewhere."),
    ] = None,
) -> None:
    """Start everything on this machine, and keep it running until Ctrl-C."""
    from app.local.up import up as run

    overrides: dict[str, Any] = {} if port is None else {"port": port}
    settings = _settings(**overrides)
    if tokenizer is not None and not upstream:
        raise ConfigError("--tokenizer is for --upstream")
    asyncio.run(run(settings, model, workers, procfile, upstream or (), tokenizer))


def _become(program: Callable[[Settings], programs.Launch]) -> None:
    from app.local.service_check import check_postgres, check_redis

    settings = _settings()
    launch = program(settings)
    asyncio.run(check_redis(settings))
    asyncio.run(check_postgres(settings))
    launch.become(settings)


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
def ready(
    of_api: Annotated[bool, typer.Option("--api", help="Ask the API of LONGHAUL_PORT instead.")] = False,
) -> None:
    """Exit with status 0 if the worker of LONGHAUL_READY_FILE can take responses, and else with 1. For probes."""
    from app.local import readiness

    settings = load_settings()
    readiness.check_api(settings) if of_api else readiness.check_worker(settings)


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
    asyncio.run(_migrate(_settings()))
    if os.environ.get("HONCHO_PROCESS_NAME"):
        stop_signals = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
        typer.echo("the schema is up to date; waiting for the end, because honcho stops every process when one ends")
        sys.stdout.flush()
        signal.sigwait(stop_signals)


async def _migrate(settings: Settings) -> None:
    from app.local.commands.database import make_first_key, opened
    from app.local.service_check import check_postgres
    from app.store.database import StoreUnavailable
    from app.store.migrate import migrate as run

    await check_postgres(settings)
    async with opened(settings) as db:
        try:
            await run(db)
        except StoreUnavailable:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise LocalError(f"the database's schema cannot be brought up to date: {reason}") from None
        if settings.asks_for_keys:
            await make_first_key(db, settings)


@cli.command()
def rotate_key() -> None:
    """Seal with a new key from now on; what was sealed before stays readable. Takes two minutes."""
    number = asyncio.run(_rotate_key(with_running_services(_settings())))
    typer.echo(f"key {number} seals now")


async def _rotate_key(settings: Settings) -> int:
    from app.local.commands.database import opened
    from app.store.keys import rotate

    async with opened(settings) as db:
        return await rotate(db)


@cli.command()
def models() -> None:
    """List the models of the models file, how they are read, and the workers that `longhaul up` runs here."""
    settings = _settings()
    workers = running_workers(settings)
    served = load_models(settings.models).models
    for model in served:
        engine = " ".join([model.engine, *(model.upstream.urls if model.upstream else ())])
        typer.echo(f"{model.name}\t{engine}\t{model.path or '-'}\tqueue {model.queue}\t{description(model)}")
        _list_workers(worker for worker in workers if worker[1] == model.name)
    for name in {worker[1]: None for worker in workers if worker[1] not in {model.name for model in served}}:
        typer.echo(f"{name}\tnot in the models file")
        _list_workers(worker for worker in workers if worker[1] == name)


def _list_workers(workers: Iterable[tuple[str, str, str]]) -> None:
    for name, _, devices in workers:
        typer.echo(f"  {name}\t{f'devices {devices}' if devices else 'no devices'}")


def main() -> None:
    """The console script. Ctrl-C during a short command prints no traceback."""
    try:
        cli()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
