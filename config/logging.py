"""Logging in every Longhaul process: one line per record, to stderr, without secrets."""

from __future__ import annotations

import logging
import re
import sys
import time
import traceback
from types import TracebackType

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]*@")
_LINE_END = "\n"
_SILENT = ("python_multipart.multipart",)  # it warns of each form that is none, with bytes of it
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
_OWN_HANDLERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "celery", "celery.task")
"""Loggers whose own handlers would print a record twice, or in another format."""


class LineFormatter(logging.Formatter):
    """`2026-11-21T10:23:41.123Z INFO name: message`; line ends become `\\n`, URL passwords `***`.

    An exception becomes its type, the first line of its message and the innermost frames. With `tracebacks` (at level
    DEBUG) it becomes the whole traceback, still on one line.
    """

    def __init__(self, tracebacks: bool = False) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.tracebacks = tracebacks
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        head = self._head(record)
        if record.exc_info and record.exc_info[1] is not None:
            head += f" | {self._exception(record.exc_info[1])}"
        return _CREDENTIALS.sub("***@", head).replace("\r", "\\r").replace("\n", "\\n")

    def _head(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        return self.formatMessage(record)

    def _exception(self, error: BaseException) -> str:
        if self.tracebacks:
            return "".join(traceback.format_exception(error)).rstrip()
        # The first line alone: in later lines databases quote rows, and rows hold prompts.
        return f"{type(error).__name__}: {str(error).partition(_LINE_END)[0]}{_frames(error.__traceback__)}"


def _frames(trace: TracebackType | None, last: int = 3) -> str:
    """The innermost `last` frames, innermost first: ` (journal.py:41 in flush < runner.py:80 in run)`."""
    frames = traceback.extract_tb(trace)[-last:]
    names = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} in {frame.name}" for frame in reversed(frames)]
    return f" ({' < '.join(names)})" if names else ""


def setup_logging(level: str) -> None:
    """Makes the root logger the only one that writes. `level` is `Settings.log_level`. May be called twice."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(tracebacks=level == "DEBUG"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
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
