"""Flower's process: `celery -A app.flower.main:flower_app flower`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from app.queue.celery_app import make_celery
from config.logging import setup_logging
from config.settings import ConfigError, load_settings


def __getattr__(name: str) -> Any:
    """`flower_app`, Celery's app, made on access, not at import. Flower's command makes the web application later."""
    if name != "flower_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        settings = load_settings()
        celery, _ = make_celery(settings), settings.database_dsn
    except ConfigError as error:
        raise SystemExit(f"longhaul: {error}") from None
    setup_logging(settings.log_level, settings.log_format, "flower")
    command: Any = import_module("flower.command")
    command.Flower = import_module("app.flower.site").LonghaulFlower.of(settings)
    return celery
