"""A line of the log, as text and as JSON."""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from collections.abc import Mapping
from types import TracebackType

import orjson

from config.logging.context import process_name, worker_name

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]*@")
_WORD = re.compile(r"[^\s\"=]+")
_LINE_END = "\n"


class LineFormatter(logging.Formatter):
    """`2026-11-21T10:23:41.123Z INFO name: message response_id=resp_1 attempt=2`, as `LONGHAUL_LOG_FORMAT=text` has it.

    Behind the message stands what the line is about, and what else it has as `fields`. Line ends become `\\n`, URL
    passwords `***`. An exception becomes its type, the first line of its message and the innermost frames. With
    `tracebacks` (at level DEBUG) it becomes the whole traceback, still on one line.
    """

    def __init__(self, tracebacks: bool = False) -> None:
        super().__init__()
        self.tracebacks = tracebacks
        self._second = (-1, "")

    def format(self, record: logging.LogRecord) -> str:
        text = f"{self._time(record)} {record.levelname} {record.name}: {record.getMessage()}"
        for name, value in _fields(record).items():
            text += f" {name}={_shown(value)}"
        if (error := self._error(record)) is not None:
            text += f" | {error}"
        return _without_credentials(text).replace("\r", "\\r").replace("\n", "\\n")

    def _time(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second[0]:  # to format one takes longer than the rest of a line
            self._second = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second[1]}.{int(1000 * (record.created - second)):03d}Z"

    def _error(self, record: logging.LogRecord) -> str | None:
        if not record.exc_info or (error := record.exc_info[1]) is None:
            return None
        if self.tracebacks:
            return "".join(traceback.format_exception(error)).rstrip()
        # The first line alone: in later lines databases quote rows, and rows hold prompts.
        return f"{type(error).__name__}: {str(error).partition(_LINE_END)[0]}{_frames(error.__traceback__)}"


class JsonFormatter(LineFormatter):
    """One JSON object a line, as `LONGHAUL_LOG_FORMAT=json` has it. docs/operations.md lists the members."""

    def format(self, record: logging.LogRecord) -> str:
        worker, error = worker_name(), self._error(record)
        line: dict[str, object] = {
            "time": self._time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _without_credentials(record.getMessage()),
            "process": process_name(record),
            "pid": record.process,
        }
        if worker is not None:
            line["worker"] = worker
        line |= _fields(record)
        if error is not None:
            line["exception"] = _without_credentials(error)
        return as_json(line)


def as_json(line: Mapping[str, object]) -> str:
    """A line of the log as JSON; its texts may hold what is not Unicode."""
    try:
        return orjson.dumps(line).decode()
    except TypeError:
        return json.dumps(line, default=repr)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What a record has beside its message: fields of its own, and what it is about."""
    return {**getattr(record, "fields", {}), **getattr(record, "subject", {})}


def _shown(value: object) -> str:
    """A value in a line of text: quoted, if it would not be one word."""
    if isinstance(value, str):
        return value if value.isidentifier() or _WORD.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return str(value) if type(value) in (int, float) else json.dumps(value, default=repr)


def _without_credentials(text: str) -> str:
    return _CREDENTIALS.sub("***@", text) if "://" in text else text


def _frames(trace: TracebackType | None, last: int = 3) -> str:
    """The innermost `last` frames, innermost first: ` (journal.py:41 in flush < runner.py:80 in run)`."""
    frames = traceback.extract_tb(trace)[-last:]
    names = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} in {frame.name}" for frame in reversed(frames)]
    return f" ({' < '.join(names)})" if names else ""
