"""`longhaul up`: starts services, schema and the Procfile's processes, in this order, and stops the services last."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.local.children import Child, Program, run
from app.local.console import Console
from app.local.errors import LocalError
from app.local.home import Home
from app.local.ports import check_port
from app.local.procfile import PROCFILE, RELEASE, Process, formation, parse
from app.local.programs import FLOWER_HOST, absolute_paths
from app.local.services.embedded_services import embedded
from app.local.supervisor import Log, Stopped, StopRequest, describe, run_unless_stopped, supervise_all
from app.local.welcome import Addresses, api_is_ready, flower_login, welcome
from config.models import load_models
from config.settings import CHECKED_VARIABLE, ConfigError, Settings

STOP_MARGIN_SECONDS = 15.0
"""Seconds from the end of a worker's grace to SIGKILL."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMMEDIATE_AFTER_SECONDS = 1.0
"""A second Ctrl-C stops without grace if it comes this long after the first: a double press is one."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of the command line."""

    model: str | None = None
    """A name of the models file, a folder, or a hub id; None: every model of the models file."""
    workers: int = 1
    """Worker processes for each model."""
    procfile: Path = PROCFILE


@dataclass(frozen=True, slots=True)
class Start:
    """All that one start needs, checked."""

    settings: Settings
    home: Home
    commands: dict[str, str]
    processes: list[Process]
    models: tuple[str, ...]
    folder: Path

    @property
    def grace(self) -> float:
        return self.settings.shutdown_grace_seconds + STOP_MARGIN_SECONDS

    def program(self, process: Process, env: dict[str, str], lock: int) -> Program:
        return Program(process.argv, {**env, **process.env}, self.folder, grace=self.grace, hold=(lock,))


async def up(settings: Settings, options: UpOptions) -> None:
    """Runs until it is asked to stop. Raises ConfigError or LocalError, one line, if it cannot start or go on."""
    console = Console()
    stopping = StopRequest()
    _handle_signals(stopping)
    home = Home.prepare(settings.home)
    max_wait = settings.shutdown_grace_seconds + 2 * STOP_MARGIN_SECONDS
    try:
        async with home.lock(max_wait, console.log) as lock:
            start = _checked(settings, options, home)
            async with embedded(start.settings, home, lock, stopping, console.log) as urls:
                with home.showing_services(urls):
                    await _run(start, {**_environment(start.settings), **urls}, lock, stopping, console)
    except Stopped:
        pass
    finally:
        _ignore_signals()
    if stopping.reason is not None:
        raise LocalError(stopping.reason)


def _checked(settings: Settings, options: UpOptions, home: Home) -> Start:
    """Checks everything that can be known to be wrong before a process runs. Raises ConfigError, LocalError."""
    try:
        commands = parse(options.procfile.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read {options.procfile}: {getattr(error, 'strerror', 'not UTF-8')}") from None
    if "api" in commands:
        settings.check_auth()
    settings, models = _models(settings, options.model or settings.model, home)
    for name, variable, host, port in (
        ("api", "LONGHAUL_PORT", settings.host, settings.port),
        ("flower", "LONGHAUL_FLOWER_PORT", FLOWER_HOST, settings.flower_port),
    ):
        if name in commands:
            check_port(variable, host, port)
    processes = formation(commands, models, options.workers)
    return Start(settings, home, commands, processes, models, options.procfile.resolve().parent)


def _models(settings: Settings, wanted: str | None, home: Home) -> tuple[Settings, tuple[str, ...]]:
    """The models that get workers. A model that is not in the models file gets its own models file."""
    if wanted is None or settings.models.exists():
        known = tuple(model.name for model in load_models(settings.models).models)
        if wanted is None or wanted in known:
            return settings, known if wanted is None else (wanted,)
    file = home.path / "models.toml"
    name, path = _name_and_path(wanted)
    file.write_text(f"[[models]]\nname = {_toml(name)}\npath = {_toml(path)}\n", encoding="utf-8")
    try:
        return settings.model_copy(update={"models": file}), (load_models(file).models[0].name,)
    except ConfigError as error:
        raise ConfigError(f"--model: {str(error).removeprefix(f'LONGHAUL_MODELS: {file}: ')}") from None


def _name_and_path(wanted: str) -> tuple[str, str]:
    """The model's name and path: a folder has the name of the folder, and a hub id is both."""
    folder = Path(wanted).expanduser()
    if wanted.startswith((".", "/", "~")) or folder.is_dir():
        if not folder.is_dir():
            raise ConfigError(f"--model: {wanted!r} is not a folder")
        return folder.resolve().name, str(folder.resolve())
    return wanted, wanted


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _environment(settings: Settings) -> dict[str, str]:
    """The environment of every process: this one's, with this installation's commands first in PATH."""
    commands = str(Path(sys.executable).parent)
    env = {name: value for name, value in os.environ.items() if name not in ("LONGHAUL_MODEL", "HONCHO_PROCESS_NAME")}
    env |= absolute_paths(settings)
    env |= {"LONGHAUL_PORT": str(settings.port), CHECKED_VARIABLE: "1"}
    env |= {"PATH": f"{commands}{os.pathsep}{env.get('PATH', os.defpath)}", "PYTHONUNBUFFERED": "1"}
    return env


async def _run(start: Start, env: dict[str, str], lock: int, stopping: StopRequest, console: Console) -> None:
    """Runs `release`, then all processes until `stopping`."""
    for process in start.processes:
        console.writer_for(process.name)
    if RELEASE in start.commands:
        release = start.program(Process(RELEASE, start.commands[RELEASE]), env, lock)
        status, line = await run_unless_stopped(stopping, run(release, console.writer_for(RELEASE)))
        if status != 0:
            raise LocalError(f"{RELEASE} ended with {describe(status)}: {line}")
    programs = [
        (process.name, partial(Child.start, start.program(process, env, lock), console.writer_for(process.name)))
        for process in start.processes
    ]
    supervised = [(name, begin, _logger(console, name)) for name, begin in programs]
    welcoming = asyncio.create_task(_print_welcome(start, console))
    try:
        await supervise_all(supervised, stopping)
    finally:
        welcoming.cancel()
        await asyncio.gather(welcoming, return_exceptions=True)


def _logger(console: Console, name: str) -> Log:
    return lambda line: console.log(f"{name} {line}")


async def _print_welcome(start: Start, console: Console) -> None:
    """Prints all addresses once the API is ready."""
    if "api" not in start.commands:
        return
    began = time.monotonic()
    addresses = Addresses(start.settings.host, start.settings.port, start.settings.flower_port)
    await api_is_ready(addresses)
    auth = start.home.flower_auth(start.settings)
    login = flower_login(auth, None if start.settings.flower_auth else str(start.home.flower_file))
    first_key = start.home.first_key if start.settings.auth == "keys" else None
    console.write(welcome(addresses, start.models[0], login, first_key) + "\n")
    console.log(f"ready after {time.monotonic() - began:.1f} s")


def _handle_signals(stopping: StopRequest) -> None:
    """Stops on Ctrl-C, SIGTERM or a closed terminal, and without grace on a second Ctrl-C. Respects nohup.

    The event loop's own handlers would not do: asyncio removes them before the loop has ended.
    """
    loop = asyncio.get_running_loop()
    first = 0.0

    def request_stop(number: int) -> None:
        nonlocal first
        if not stopping:
            first = time.monotonic()
            stopping.set()
        elif number == signal.SIGINT and time.monotonic() - first > IMMEDIATE_AFTER_SECONDS:
            stopping.set_immediate()

    def on_signal(number: int, _frame: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(request_stop, number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
            signal.signal(number, on_signal)


def _ignore_signals() -> None:
    """Everything has stopped: another Ctrl-C must not turn the exit status into a failure."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
