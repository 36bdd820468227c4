"""Logging in every Longhaul process: one line per record, to stderr, without secrets."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from config.logging.context import SubjectFilter, name_process
from config.logging.handler import LineHandler
from config.logging.lines import JsonFormatter, LineFormatter

CONFIG_FILE = Path(__file__).with_name("libraries.json")
"""For libraries that read their logging from a file, in the form of `logging.config.dictConfig`."""

_QUIET = (
    "alembic",
    "asyncio",
    "celery.app.trace",
    "celery.worker.strategy",
    "client",  # the MCP SDK's
    "httpcore",
    "httpcore2",
    "httpx",
    "httpx2",
    "mcp",
    "tornado.access",
    "uvicorn.access",
    "vllm",
)
"""Loggers of libraries whose INFO records are too many, or repeat Longhaul's."""
_SILENT = ("python_multipart.multipart",)  # it warns of each form that is none, with bytes of it
_OWN_HANDLERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "celery", "celery.task")
"""Loggers whose own handlers would print a record twice, or in another format."""


def setup_logging(level: str, form: str = "text", process: str | None = None) -> None:
    """Makes the root logger the only one that writes. May be called twice.

    `level` and `form` are `Settings.log_level` and `Settings.log_format`; `process` is what JSON calls this one.
    """
    name_process(process)
    root = logging.getLogger()
    root.handlers[:] = [_handler(level, form)]
    root.setLevel(level)
    for name in _OWN_HANDLERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    if level != "DEBUG":
        for name in _QUIET:
            logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
        for name in _SILENT:
            logging.getLogger(name).setLevel(logging.ERROR)
    logging.captureWarnings(True)


def handler_of_environment() -> logging.Handler:
    """The handler of processes that libraries set up, by libraries.json: vLLM's, and uvicorn's parent."""
    level, form = (os.environ.get(f"LONGHAUL_LOG_{name}", "") for name in ("LEVEL", "FORMAT"))
    return _handler(level, form)


def vllm_handler() -> logging.Handler:
    """The same for vLLM, whose variable has the level of its logger."""
    logging.getLogger("vllm").setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "WARNING").upper())
    return handler_of_environment()


def _handler(level: str, form: str) -> logging.Handler:
    handler = LineHandler()
    handler.addFilter(SubjectFilter())
    kind = JsonFormatter if form == "json" else LineFormatter
    handler.setFormatter(kind(tracebacks=level == "DEBUG"))
    return handler
