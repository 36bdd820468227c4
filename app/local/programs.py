"""The programs behind the Procfile's commands: what `longhaul api`, `worker`, `maintenance` and `flower` become."""

from __future__ import annotations

import math
import os
import re
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from app.local.home import Home
from app.local.ports import check_port
from config.models import ModelCatalog, load_models
from config.settings import CHECKOUT, ConfigError, Settings

WS_PONG_SECONDS = 60
"""How long a WebSocket's client may leave a ping unanswered: it may be busy with what it got."""

FLOWER_HOST = "127.0.0.1"
FLOWER_DEFAULTS = {
    "FLOWER_ADDRESS": FLOWER_HOST,
    "FLOWER_LOGGING": "error",  # its warnings say that no worker has answered yet
    "FLOWER_PERSISTENT": "true",
    "FLOWER_STATE_SAVE_INTERVAL": "30000",  # milliseconds
    "FLOWER_MAX_TASKS": "10000",
    "FLOWER_PURGE_OFFLINE_WORKERS": "600",  # seconds; every worker has a new name
    "FLOWER_TASKS_COLUMNS": "name,uuid,state,args,kwargs,received,started,runtime,worker",
}
"""Flower's own variables (flower 2.2, options.py); the environment may say otherwise."""
FLOWER_OURS = {"FLOWER_PORT": "LONGHAUL_FLOWER_PORT", "FLOWER_BASIC_AUTH": "LONGHAUL_FLOWER_AUTH"}
"""Those that are set from settings, with the variable to use in their place."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to become: arguments for this Python, and variables on top of the environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def become(self, settings: Settings) -> NoReturn:
        """Replaces this process. The working directory becomes the project's, so that `app` is ours."""
        env = {**os.environ, **absolute_paths(settings), **self.env}
        os.chdir(CHECKOUT)
        os.umask(0o077)  # what it writes is nobody else's to read
        os.execve(sys.executable, [sys.executable, *self.argv], env)


def absolute_paths(settings: Settings) -> dict[str, str]:
    """The variables that hold paths, good in any working directory."""
    return {"LONGHAUL_HOME": str(settings.home.resolve()), "LONGHAUL_MODELS": str(settings.models.resolve())}


def api(settings: Settings) -> Launch:
    """uvicorn. Raises ConfigError for what would keep it from starting."""
    _check_shared(settings)
    check_port("LONGHAUL_PORT", settings.host, settings.port)
    argv = [
        *("-m", "uvicorn", "app.main:create_app", "--factory"),
        *("--host", settings.host, "--port", str(settings.port), "--workers", str(settings.api_processes)),
        *(
            "--loop",
            "uvloop",
            "--http",
            "app.api.uvicorn_protocol:HttpProtocol",
            "--log-level",
            settings.log_level.lower(),
        ),
        *("--timeout-graceful-shutdown", str(max(1, math.ceil(settings.shutdown_grace_seconds)))),
        # A frame that is too large is told so, one that is far too large ends its WebSocket.
        *("--ws-max-size", str(2 * settings.max_body_bytes)),
        *("--ws-ping-interval", str(settings.keepalive_seconds), "--ws-ping-timeout", str(WS_PONG_SECONDS)),
        *("--ws-per-message-deflate", "false"),  # events are many and small
        "--no-server-header",
    ]
    if settings.log_level != "DEBUG":
        argv.append("--no-access-log")
    return Launch(tuple(argv))


def worker(settings: Settings) -> Launch:
    """Celery with our pool, on the queue of the one model it serves."""
    model = _check_shared(settings).chosen(settings.model)
    name = f"{re.sub(r'[^A-Za-z0-9.-]+', '-', model.name)}-{uuid.uuid4().hex[:8]}"
    argv = (
        *("-m", "celery", "--quiet", "--app", "workers.main:celery", "worker"),
        *("--pool", "custom", "--concurrency", str(settings.worker_concurrency), "--queues", model.queue),
        *("--task-events", "--hostname", f"{name}@%h", "--loglevel", settings.log_level),
    )
    return Launch(
        argv, {"CELERY_CUSTOM_WORKER_POOL": "workers.celery_host.pool:TaskPool", "LONGHAUL_MODEL": model.name}
    )


def maintenance(settings: Settings) -> Launch:
    """Our own loop."""
    _check_shared(settings)
    return Launch(("-m", "workers.maintenance"))


def flower(settings: Settings) -> Launch:
    """Flower on 127.0.0.1; password and broker come by the environment, never as arguments."""
    _ = settings.broker_url
    for name, ours in FLOWER_OURS.items():
        if name in os.environ:
            raise ConfigError(f"{name} is not read here; set {ours}")
    chosen = {name: os.environ.get(name, value) for name, value in FLOWER_DEFAULTS.items()}
    check_port("LONGHAUL_FLOWER_PORT", chosen["FLOWER_ADDRESS"], settings.flower_port)
    home = Home.prepare(settings.home)
    auth = home.flower_auth(settings)
    if "," in auth:
        raise ConfigError("LONGHAUL_FLOWER_AUTH: must not hold a comma (Flower would read two passwords)")
    env = {"FLOWER_DB": str(home.path / "flower.db"), **chosen}
    env |= {"FLOWER_PORT": str(settings.flower_port), "FLOWER_BASIC_AUTH": auth}
    return Launch(("-m", "celery", "--quiet", "--app", "app.queue.celery_app:flower_app", "flower"), env)


def _check_shared(settings: Settings) -> ModelCatalog:
    """What API, workers and maintenance all need. Raises ConfigError."""
    _ = settings.database_dsn, settings.broker_url
    return load_models(settings.models)
