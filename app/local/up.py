"""`longhaul up`: services, schema, then the Procfile's processes, until somebody stops it. Services stop last."""

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
from app.local.procfile import RELEASE, Process, formation, parse
from app.local.programs import FLOWER_HOST, absolute_paths
from app.local.services import embedded
from app.local.supervisor import Say, Stopped, Stopping, describe, keep_all, unless
from app.local.welcome import Addresses, api_is_ready, flower_login, welcome
from config.models import load_models
from config.settings import CHECKED_VARIABLE, CHECKOUT, ConfigError, Settings

STOP_MARGIN_SECONDS = 15.0
"""From the end of a worker's own grace to SIGKILL."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TWICE_SECONDS = 1.0
"""A second Ctrl-C after this long means: at once."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the command line asks for."""

    model: str | None = None
    """A name of the models file, a folder, or a hub id; None: every model of the models file."""
    workers: int = 1
    """Worker processes for each model."""
    procfile: Path = CHECKOUT / "Procfile"


@dataclass(frozen=True, slots=True)
class Start:
    """One start, checked."""

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


async def up(settings: Settings, wish: UpOptions) -> None:
    """Runs until it is asked to stop. Raises ConfigError or LocalError, one line, where it could not start or go on."""
    console = Console()
    stopping = Stopping()
    _listen(stopping)
    home = Home.prepare(settings.home)
    patience = settings.shutdown_grace_seconds + 2 * STOP_MARGIN_SECONDS
    try:
        async with home.lock(patience, console.say) as lock:
            start = _checked(settings, wish, home)
            async with embedded(start.settings, home, lock, stopping, console.say) as urls:
                await _run(start, {**_environment(start.settings), **urls}, lock, stopping, console)
    except Stopped:
        pass
    finally:
        _deafen()
    if stopping.reason is not None:
        raise LocalError(stopping.reason)


def _checked(settings: Settings, wish: UpOptions, home: Home) -> Start:
    """Everything that can be wrong and be known before anything runs."""
    try:
        commands = parse(wish.procfile.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read {wish.procfile}: {getattr(error, 'strerror', 'not UTF-8')}") from None
    settings, models = _models(settings, wish.model or settings.model, home)
    for name, variable, host, port in (
        ("api", "LONGHAUL_PORT", settings.host, settings.port),
        ("flower", "LONGHAUL_FLOWER_PORT", FLOWER_HOST, settings.flower_port),
    ):
        if name in commands:
            check_port(variable, host, port)
    processes = formation(commands, models, wish.workers)
    return Start(settings, home, commands, processes, models, wish.procfile.resolve().parent)


def _models(settings: Settings, wanted: str | None, home: Home) -> tuple[Settings, tuple[str, ...]]:
    """The models to have workers for; one that is not in the models file gets a models file of its own."""
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
    """A folder is served under its own name, a hub id as it is."""
    folder = Path(wanted).expanduser()
    if wanted.startswith((".", "/", "~")) or folder.is_dir():
        if not folder.is_dir():
            raise ConfigError(f"--model: {wanted!r} is not a folder")
        return folder.resolve().name, str(folder.resolve())
    return wanted, wanted


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _environment(settings: Settings) -> dict[str, str]:
    """What every process gets: ours, with the commands of this installation first in the path."""
    here = str(Path(sys.executable).parent)
    env = {name: value for name, value in os.environ.items() if name not in ("LONGHAUL_MODEL", "HONCHO_PROCESS_NAME")}
    env |= absolute_paths(settings)
    env |= {"LONGHAUL_PORT": str(settings.port), CHECKED_VARIABLE: "1"}
    env |= {"PATH": f"{here}{os.pathsep}{env.get('PATH', os.defpath)}", "PYTHONUNBUFFERED": "1"}
    return env


async def _run(start: Start, env: dict[str, str], lock: int, stopping: Stopping, console: Console) -> None:
    """Release, then all processes, until `stopping`."""
    for process in start.processes:
        console.named(process.name)
    if RELEASE in start.commands:
        release = start.program(Process(RELEASE, start.commands[RELEASE]), env, lock)
        status, line = await unless(stopping, run(release, console.named(RELEASE)))
        if status != 0:
            raise LocalError(f"{RELEASE} ended with {describe(status)}: {line}")
    programs = [
        (process.name, partial(Child.start, start.program(process, env, lock), console.named(process.name)))
        for process in start.processes
    ]
    keepers = [(name, begin, _saying(console, name)) for name, begin in programs]
    greeter = asyncio.create_task(_greet(start, console))
    try:
        await keep_all(keepers, stopping)
    finally:
        greeter.cancel()
        await asyncio.gather(greeter, return_exceptions=True)


def _saying(console: Console, name: str) -> Say:
    return lambda line: console.say(f"{name} {line}")


async def _greet(start: Start, console: Console) -> None:
    """Says where everything is, once the API is ready."""
    if "api" not in start.commands:
        return
    began = time.monotonic()
    addresses = Addresses(start.settings.host, start.settings.port, start.settings.flower_port)
    await api_is_ready(addresses)
    auth = start.home.flower_auth(start.settings)
    login = flower_login(auth, None if start.settings.flower_auth else str(start.home.flower_file))
    console.write(welcome(addresses, start.models[0], login) + "\n")
    console.say(f"ready after {time.monotonic() - began:.1f} s")


def _listen(stopping: Stopping) -> None:
    """Ctrl-C, SIGTERM and a closed terminal stop; a second Ctrl-C stops at once. An ignored SIGHUP (nohup) stays so.

    Plain handlers, not the loop's, which would give way to Python's own before the loop has ended.
    """
    loop = asyncio.get_running_loop()
    first = 0.0

    def asked(number: int) -> None:
        nonlocal first
        if not stopping:
            first = time.monotonic()
            stopping.set()
        elif number == signal.SIGINT and time.monotonic() - first > TWICE_SECONDS:
            stopping.hurry()

    def on_signal(number: int, _frame: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(asked, number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP:
            signal.signal(number, on_signal)


def _deafen() -> None:
    """Everything has stopped: one more Ctrl-C must not make the end look like a failure."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
