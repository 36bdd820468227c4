"""This machine: settings, models, GPUs, room on the disk, open files, and what answers on its ports."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.local.commands.doctor.finding import Finding, fail, ok, warn
from app.local.errors import LocalError
from app.local.home import running_scrapes
from app.local.ports import probe
from app.local.programs import OTHER_FILES
from app.local.workers.devices import LIST_SECONDS, devices_needed, visible_devices
from config.models import ModelCatalog, require_folders
from config.settings import ConfigError, Settings, unknown_variables

LEAST_DISK_BYTES = 2**30
PORT_SECONDS = 5.0
_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def check(settings: Settings, catalog: ModelCatalog | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    yield from settings_of(settings, environ)
    if catalog is not None:
        yield from models(catalog, settings.model)
        yield from gpus(catalog)
    yield from open_files(settings, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield from disk(settings.home)
    yield from api(settings)
    yield from metrics(settings)


def settings_of(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    if unknown := unknown_variables(environ):
        yield warn("settings", f"{', '.join(unknown)} have no effect", "mend the names; docs/settings.md has them all")
    try:
        settings.check_auth()
        settings.check_metrics()
    except ConfigError as error:
        yield fail("settings", str(error), "the process that serves it does not start like this")
    else:
        if not unknown:
            yield ok("settings", "every one is known, and its value is valid")


def models(catalog: ModelCatalog, own: str | None) -> Iterator[Finding]:
    """`own` is the model that a worker with these settings serves."""
    for model in catalog.models:
        try:
            require_folders(model)
        except ConfigError as error:
            judge = fail if model.name == own else warn
            yield judge("models", str(error), "a worker of it does not start on this machine")
        else:
            place = f"folder {model.path}" if Path(model.path).is_absolute() else model.path or "no files"
            yield ok("models", f"{model.name}: {place}")


def gpus(catalog: ModelCatalog) -> Iterator[Finding]:
    """One worker of each model may be anywhere: that there are fewer GPUs than all need together is no fault."""
    wanted = {model.name: devices_needed(model) for model in catalog.models}
    try:
        found = visible_devices()
        driver = None if found is None else _driver()
    except (ConfigError, LocalError) as error:
        yield fail("GPUs", str(error), "look at the driver: nvidia-smi -L")
        return
    if found is None:
        yield ok("GPUs", "none are used: no driver is here, or vLLM is built for the CPU")
        return
    text = f"{len(found.all)}, driver {driver or 'unknown'}"
    if too_large := [name for name, count in wanted.items() if count > len(found.all)]:
        yield warn(
            "GPUs",
            f"{text}: too few for a worker of {', '.join(too_large)}",
            "run its workers elsewhere, or lower tensor_parallel_size",
        )
    else:
        yield ok("GPUs", text)


def _driver() -> str | None:
    try:
        done = subprocess.run(_DRIVER, capture_output=True, text=True, timeout=LIST_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().partition("\n")[0] or None


def open_files(settings: Settings, hard: int) -> Iterator[Finding]:
    """The API raises its own limit, as far as the hard one."""
    needed = settings.max_connections + OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        yield warn(
            "open files",
            f"this user may have {hard}, and an API with {settings.max_connections} connections needs {needed}",
            "raise the hard limit (LimitNOFILE, ulimit -Hn), or lower LONGHAUL_MAX_CONNECTIONS",
        )
    else:
        yield ok("open files", f"an API needs {needed}")


def disk(home: Path) -> Iterator[Finding]:
    place = next(each for each in (home, *home.absolute().parents) if each.exists())
    free = shutil.disk_usage(place).free
    shown = f"{free / 2**30:.1f} GiB are free for LONGHAUL_HOME"
    yield warn("disk", shown, "make room") if free < LEAST_DISK_BYTES else ok("disk", shown)


def api(settings: Settings) -> Iterator[Finding]:
    answer = probe(settings.host, settings.port, "/health/ready", PORT_SECONDS)
    if answer is None:
        yield ok("API", f"none answers on port {settings.port} of this machine")
        return
    status, body = answer
    try:
        said = json.loads(body)
        state, missing = said["status"], said.get("missing", ())
    except (ValueError, TypeError, KeyError):
        yield fail(
            "API", f"port {settings.port} answers with status {status}, and is no API of Longhaul", "set LONGHAUL_PORT"
        )
        return
    text = state + (f": {', '.join(missing)} missing" if missing else "")
    if status == 200:
        yield (
            ok("API", text)
            if state == "ready"
            else warn("API", text, "work is accepted, and waits for what is missing")
        )
    else:
        yield fail("API", text, "see what is said of it here")


def metrics(settings: Settings) -> Iterator[Finding]:
    """Looks for the metrics of this process's settings; with `longhaul up`, of all its processes."""
    if settings.metrics_port is None:
        yield ok("metrics", "off: LONGHAUL_METRICS_PORT is not set")
        return
    ports = running_scrapes(settings) or [settings.metrics_port]
    answers = {
        port: probe(settings.metrics_host, port, "/metrics", PORT_SECONDS, settings.metrics_token) for port in ports
    }
    for port, answer in answers.items():
        if answer is None:
            yield warn("metrics", f"nothing listens on port {port}", "start the process, or name its port here")
        elif answer[0] != 200:
            yield fail("metrics", f"port {port} answers with status {answer[0]}", "check LONGHAUL_METRICS_TOKEN")
        else:
            yield ok("metrics", f"port {port} answers")
