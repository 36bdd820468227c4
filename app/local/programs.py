"""The programs that `longhaul api`, `worker`, `maintenance` and `flower` run in their place."""

from __future__ import annotations

import math
import os
import resource
import runpy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from app.local.home import Home
from app.local.ports import check_port
from app.queue.node import new_node
from config.logging import CONFIG_FILE
from config.models import ModelCatalog, load_models, require_engine, require_folders
from config.settings import CHECKOUT, ConfigError, Settings

WS_PONG_SECONDS = 60
"""Seconds that a WebSocket client may leave a ping unanswered: it may be busy with earlier messages."""

IDLE_SECONDS = 75
"""How long a connection is kept between two requests: longer than proxies (60) and HTTP clients (5) keep theirs.

So the other side closes first. A request that is sent while the server closes is reset: of 5,000 POSTs on 64
connections to a busy server, 17 were, with uvicorn's 5 seconds, which are httpx's, too.
"""

CONNECTION = "app.api.connection"
"""The package of our connections, for uvicorn."""

API_END_SECONDS = 5
"""Seconds for answers to end after the grace (as in `app/api/shutdown.py`, which costs an import of the API)."""

OTHER_FILES = 512
"""Open files of an API process beside its connections."""

FLOWER_DEFAULTS = {
    "FLOWER_LOGGING": "error",  # its warnings say that no worker has answered yet
    "FLOWER_ENABLE_EVENTS": "false",  # workers send them, and take no command to
    "FLOWER_PERSISTENT": "true",
    "FLOWER_STATE_SAVE_INTERVAL": "30000",  # milliseconds
    "FLOWER_MAX_TASKS": "10000",
    "FLOWER_PURGE_OFFLINE_WORKERS": "600",  # seconds; every worker has a new name
    "FLOWER_TASKS_COLUMNS": "uuid,state,worker,args,kwargs,received,started,runtime",  # their names are all alike
}
"""Defaults of Flower's own variables (flower 2.2, options.py); the environment may override them."""
FLOWER_SETTINGS = {
    "FLOWER_ADDRESS": "LONGHAUL_FLOWER_HOST",
    "FLOWER_PORT": "LONGHAUL_FLOWER_PORT",
    "FLOWER_BASIC_AUTH": "LONGHAUL_FLOWER_AUTH",
}
"""Variables of Flower that Longhaul's settings set, with the setting to use in their place."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to run: arguments for Python (`-m`, module, ...), and variables to add to the environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def become(self, settings: Settings) -> NoReturn:
        """Runs the program in this process, as `python ARGV` would, and ends with it.

        A new interpreter would import Longhaul's settings once more, which is a quarter of the time to a restarted API.
        The working directory becomes the checkout.
        """
        _, module, *arguments = self.argv
        os.environ.update({**absolute_paths(settings), **self.env})
        os.chdir(CHECKOUT)
        os.umask(0o077)  # other users must not read its files
        sys.path[0] = str(CHECKOUT)
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()


def absolute_paths(settings: Settings) -> dict[str, str]:
    """The variables that hold paths, as absolute paths. Links stay links: a ConfigMap's lead elsewhere later."""
    paths = {
        "LONGHAUL_HOME": settings.home,
        "LONGHAUL_MODELS": settings.models,
        "LONGHAUL_READY_FILE": settings.ready_file,
        "LONGHAUL_SECRETS": settings.secrets,
    }
    return {name: str(path.absolute()) for name, path in paths.items() if path is not None}


def api(settings: Settings) -> Launch:
    """uvicorn. Raises ConfigError if it could not start."""
    _check_shared(settings)
    settings.check_auth()
    check_port("LONGHAUL_PORT", settings.host, settings.port)
    _check_metrics(settings, settings.api_processes)
    _allow_open_files(settings.max_connections + OTHER_FILES)
    argv = [
        *("-m", "uvicorn" if settings.api_processes == 1 else f"{CONNECTION}.processes"),
        *("app.main:create_app", "--factory"),
        *("--host", settings.host, "--port", str(settings.port), "--workers", str(settings.api_processes)),
        *("--loop", f"{CONNECTION}.loop:Loop", "--log-level", settings.log_level.lower()),
        *("--http", f"{CONNECTION}.http:BoundedHttp", "--ws", f"{CONNECTION}.websocket:BoundedWebSocket"),
        *("--timeout-graceful-shutdown", str(math.ceil(settings.api_grace_seconds + API_END_SECONDS))),
        *("--backlog", str(settings.max_connections)),
        *("--timeout-keep-alive", str(IDLE_SECONDS)),
        # A frame beyond the limit gets an error event; one beyond twice the limit closes the WebSocket.
        *("--ws-max-size", str(2 * settings.max_body_bytes)),
        *("--ws-ping-interval", str(settings.keepalive_seconds), "--ws-ping-timeout", str(WS_PONG_SECONDS)),
        *("--ws-per-message-deflate", "false"),  # events are many and small
        # Nobody's X-Forwarded-For is believed unless the operator names the proxies: the audit log has the address.
        *("--forwarded-allow-ips", os.environ.get("FORWARDED_ALLOW_IPS", "")),
        *("--log-config", str(CONFIG_FILE), "--no-access-log"),  # ours: app/api/middleware.py
        "--no-server-header",
    ]
    return Launch(tuple(argv))


def _allow_open_files(wanted: int) -> None:
    """Raises the limit of this process, which the program inherits, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def worker(settings: Settings) -> Launch:
    """Celery with Longhaul's pool, on the queue of the model that it serves."""
    model = _check_shared(settings).choose(settings.model)
    require_engine(model)
    require_folders(model)
    _check_metrics(settings)
    if settings.ready_file is not None:
        _clear(settings.ready_file)
    argv = (
        *("-m", "celery", "--quiet", "--app", "workers.main:celery", "worker"),
        *("--pool", "custom", "--concurrency", str(settings.worker_concurrency), "--queues", model.queue),
        *("--task-events", "--hostname", new_node(model.name), "--loglevel", settings.log_level),
    )
    return Launch(
        argv, {"CELERY_CUSTOM_WORKER_POOL": "workers.celery_host.pool:TaskPool", "LONGHAUL_MODEL": model.name}
    )


def _clear(ready_file: Path) -> None:
    """Removes what an earlier worker left. Raises ConfigError if this one could not write there."""
    try:
        ready_file.touch()
        ready_file.unlink()
    except OSError as error:
        raise ConfigError(f"LONGHAUL_READY_FILE: cannot write {ready_file}: {error.strerror}") from None


def maintenance(settings: Settings) -> Launch:
    """The maintenance loop."""
    _check_shared(settings)
    _check_metrics(settings)
    return Launch(("-m", "app.maintenance"))


def flower(settings: Settings) -> Launch:
    """Flower. Password and URLs are in the environment, never in the arguments."""
    _ = settings.database_dsn, settings.broker_url
    for name, setting in FLOWER_SETTINGS.items():
        if name in os.environ:
            raise ConfigError(f"{name} is not read here; set {setting}")
    options = {name: os.environ.get(name, value) for name, value in FLOWER_DEFAULTS.items()}
    check_port("LONGHAUL_FLOWER_PORT", settings.flower_host, settings.flower_port)
    home = Home.prepare(settings.home)
    auth = home.flower_auth(settings)
    if "," in auth:
        raise ConfigError("LONGHAUL_FLOWER_AUTH: must not hold a comma (Flower would read two passwords)")
    env = {"FLOWER_DB": str(home.path / "flower.db"), **options}
    env |= {"FLOWER_ADDRESS": settings.flower_host, "FLOWER_PORT": str(settings.flower_port), "FLOWER_BASIC_AUTH": auth}
    return Launch(("-m", "celery", "--quiet", "--app", "app.flower.main:flower_app", "flower"), env)


def _check_metrics(settings: Settings, processes: int = 1) -> None:
    """Raises ConfigError if a process of these could not serve `/metrics`: each takes a port, from the first on."""
    settings.check_metrics()
    if settings.metrics_port is not None:
        for port in range(settings.metrics_port, settings.metrics_port + processes):
            check_port("LONGHAUL_METRICS_PORT", settings.metrics_host, port)


def _check_shared(settings: Settings) -> ModelCatalog:
    """Checks what API, workers and maintenance all need; returns the models. Raises ConfigError."""
    _ = settings.database_dsn, settings.broker_url
    return load_models(settings.models)
