"""`longhaul up`: starts services, schema and the Procfile's processes, in this order, and stops the services last."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.local.children import run
from app.local.console import Console
from app.local.errors import LocalError
from app.local.home import API_LINE, Home, first_key, where_first_key_lies
from app.local.ports import api_url, check_port, url_of
from app.local.procfile import API, RELEASE, WORKER, Process, parse
from app.local.programs import absolute_paths
from app.local.restarts import Stopped, StopRequest, describe, run_unless_stopped
from app.local.service_check import check_postgres, check_redis
from app.local.services.embedded_services import Urls, embedded
from app.local.supervisor import Supervisor, Surroundings, Wanted
from app.local.welcome import api_is_ready, flower_login, welcome
from app.local.workers.devices import visible_devices
from app.local.workers.plan import PlannedWorker
from app.local.workers.scrapes import Scrapes
from app.local.workers.upstream import attached, toml, with_models_file
from config.models import load_models, require_engine
from config.models_file import ModelsFile
from config.settings import CHECKED_VARIABLE, ConfigError, Settings

_OF_ONE_PROCESS = ("LONGHAUL_MODEL", "LONGHAUL_UPSTREAM", "LONGHAUL_READY_FILE", "NOTIFY_SOCKET", "HONCHO_PROCESS_NAME")
"""Variables that hold for one process alone, so none of several gets them."""
STOP_MARGIN_SECONDS = 15.0
"""Seconds from the end of a worker's grace to SIGKILL."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMMEDIATE_AFTER_SECONDS = 1.0
"""A second Ctrl-C stops without grace if it comes this long after the first: a double press is one."""


@dataclass(frozen=True, slots=True)
class Start:
    """All that one start needs, checked."""

    settings: Settings
    home: Home
    commands: dict[str, str]
    wanted: Wanted
    workers: list[PlannedWorker]
    """The first ones."""
    folder: Path

    def surroundings(self, urls: Urls, lock: int) -> Surroundings:
        grace = self.settings.shutdown_grace_seconds + STOP_MARGIN_SECONDS
        env = {**_environment(self.settings), **urls.processes}
        return Surroundings(env, self.folder, lock, grace, self.settings.api_grace_seconds, urls.of_command)


async def up(
    settings: Settings,
    model: str | None,
    workers: int,
    procfile: Path,
    upstream: Sequence[str] = (),
    tokenizer: str | None = None,
) -> None:
    """Runs until it is asked to stop: `workers` worker processes for `model` (None: for each of the models file).

    With the URLs of `upstream`, for the model that these servers have; `tokenizer` is its own then, if it is not where
    they have it.

    Raises ConfigError or LocalError, one line, if it cannot start or go on.
    """
    console = Console(settings.log_format)
    stopping = StopRequest()
    _handle_signals(stopping)
    home = Home.prepare(settings.home)
    max_wait = settings.shutdown_grace_seconds + 2 * STOP_MARGIN_SECONDS
    try:
        async with home.lock(max_wait, console.log) as lock:
            if upstream:
                settings, model = await attached(settings, home.path, upstream, model, tokenizer)
            start = _checked(settings, home, model or settings.model, workers, procfile)
            await check_postgres(settings)
            await check_redis(settings)
            async with embedded(start.settings, home, lock, stopping, console.log) as urls:
                with home.showing_services({**urls.processes, API_LINE: api_url(start.settings)}):
                    await _run(start, urls, lock, stopping, console)
    except Stopped:
        pass
    finally:
        _ignore_signals()
    if stopping.reason is not None:
        raise LocalError(stopping.reason)


def _checked(settings: Settings, home: Home, model: str | None, workers: int, procfile: Path) -> Start:
    """Checks everything that can be known to be wrong before a process runs. Raises ConfigError, LocalError."""
    try:
        commands = parse(procfile.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read {procfile}: {getattr(error, 'strerror', 'not UTF-8')}") from None
    if API in commands:
        settings.check_auth()
    settings.check_metrics()
    settings, model = _model(settings, model, home)
    for name, variable, host, port in (
        (API, "LONGHAUL_PORT", settings.host, settings.port),
        ("flower", "LONGHAUL_FLOWER_PORT", settings.flower_host, settings.flower_port),
    ):
        if name in commands:
            check_port(variable, host, port)
    file = ModelsFile(settings)
    wanted = Wanted(file, model, workers, visible_devices() if WORKER in commands else None)
    planned = wanted.plan(file.catalog, [])
    for worker in planned if WORKER in commands else ():
        require_engine(worker.model)
    return Start(settings, home, commands, wanted, planned, procfile.resolve().parent)


def _model(settings: Settings, wanted: str | None, home: Home) -> tuple[Settings, str | None]:
    """The settings, and the model that gets workers; None: all.

    A model that is not in the models file gets a models file of its own.
    """
    if wanted is None or settings.models.exists():
        known = [model.name for model in load_models(settings.models).models]
        if wanted is None or wanted in known:
            return settings, wanted
    name, path = _name_and_path(wanted)
    text = f"[[models]]\nname = {toml(name)}\npath = {toml(path)}\n"
    return with_models_file(settings, home.path, "--model", text)


def _name_and_path(wanted: str) -> tuple[str, str]:
    """The model's name and path: a folder has the name of the folder, and a hub id is both."""
    folder = Path(wanted).expanduser()
    if wanted.startswith((".", "/", "~")) or folder.is_dir():
        if not folder.is_dir():
            raise ConfigError(f"--model: {wanted!r} is not a folder")
        return folder.resolve().name, str(folder.resolve())
    return wanted, wanted


def _environment(settings: Settings) -> dict[str, str]:
    """The environment of every process: this one's, with this installation's commands first in PATH."""
    commands = str(Path(sys.executable).parent)
    env = {name: value for name, value in os.environ.items() if name not in _OF_ONE_PROCESS}
    env |= absolute_paths(settings.model_copy(update={"ready_file": None}))
    env |= {"LONGHAUL_PORT": str(settings.port), CHECKED_VARIABLE: "1"}
    env |= {"PATH": f"{commands}{os.pathsep}{env.get('PATH', os.defpath)}", "PYTHONUNBUFFERED": "1"}
    return env


async def _run(start: Start, urls: Urls, lock: int, stopping: StopRequest, console: Console) -> None:
    """Runs `release`, then all processes until `stopping`."""
    surroundings = start.surroundings(urls, lock)
    if RELEASE in start.commands:
        release = surroundings.program(Process(RELEASE, start.commands[RELEASE]))
        status, line = await run_unless_stopped(stopping, run(release, console.writer_for(RELEASE)))
        if status != 0:
            raise LocalError(f"{RELEASE} ended with {describe(status)}: {line}")
    welcoming = asyncio.create_task(_print_welcome(start, console))
    welcoming.add_done_callback(partial(_report_failure, console))
    try:
        scrapes = Scrapes(start.settings, start.home, console.log)
        parts = (surroundings, start.home, scrapes, console, stopping)
        await Supervisor(start.commands, start.workers, start.wanted, *parts).run()
    finally:
        welcoming.cancel()
        await asyncio.gather(welcoming, return_exceptions=True)


async def _print_welcome(start: Start, console: Console) -> None:
    """Prints all addresses once the API is ready."""
    if API not in start.commands:
        return
    began = time.monotonic()
    settings = start.settings
    url = api_url(settings)
    model = start.wanted.model or start.wanted.file.catalog.models[0].name
    await api_is_ready(url, model, first_key(settings) if settings.asks_for_keys else None)
    auth = start.home.flower_auth(start.settings)
    login = flower_login(auth, None if start.settings.flower_auth else str(start.home.flower_file))
    key = where_first_key_lies(start.settings) if start.settings.asks_for_keys else None
    flower = url_of(settings.flower_host, settings.flower_port)
    console.write(welcome(url, flower, model, login, key) + "\n")
    console.log(f"ready after {time.monotonic() - began:.1f} s")


def _report_failure(console: Console, welcoming: asyncio.Task[None]) -> None:
    """Says why there is no welcome: the processes run without it."""
    if not welcoming.cancelled() and (error := welcoming.exception()) is not None:
        console.log(f"cannot print the addresses: {type(error).__name__}: {error}")


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
