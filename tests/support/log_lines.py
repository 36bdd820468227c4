"""What this process logs, as the lines of `LONGHAUL_LOG_FORMAT=json` have it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from config.logging.context import SubjectFilter
from config.logging.lines import JsonFormatter


class Lines(logging.Handler):
    """Keeps each line, parsed."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[dict[str, Any]] = []
        self.addFilter(SubjectFilter())
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(json.loads(self.format(record)))

    def of(self, logger: str, **fields: Any) -> list[dict[str, Any]]:
        """The lines of a logger that have these fields."""
        return [
            line
            for line in self.all
            if line["logger"] == logger and all(line.get(name) == value for name, value in fields.items())
        ]


@contextmanager
def logged(level: int = logging.INFO) -> Iterator[Lines]:
    """Keeps what is logged in the block, by any logger."""
    root, lines = logging.getLogger(), Lines()
    before = root.level
    root.addHandler(lines)
    root.setLevel(level)
    try:
        yield lines
    finally:
        root.removeHandler(lines)
        root.setLevel(before)
