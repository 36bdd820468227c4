"""The terminal: whole lines, each with the name of the process that printed it.

With `LONGHAUL_LOG_FORMAT=json` every line is an object: those of our processes as they are, others in an object.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from config.logging.lines import as_json

COLOURS = (36, 33, 32, 35, 34, 31)
"""ANSI foreground colours, assigned to processes in turn."""
OWN = "longhaul"


class Console:
    """Writes `name | line`, with names padded to `width`. Ignores a terminal that is gone: stopping must go on."""

    def __init__(self, form: str = "text") -> None:
        """`form` is `Settings.log_format`."""
        self._is_json = form == "json"
        self.width = len(OWN)
        self._colours: dict[str, int] = {}
        self._coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def writer_for(self, name: str) -> Callable[[str], None]:
        """A function that writes the lines of one process."""
        self.width = max(self.width, len(name))
        if name != OWN:
            self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        if self._is_json:
            return partial(self._write_object, name)
        return lambda line: self._print(f"{self._prefix(name)} {line}\n")

    def log(self, line: str) -> None:
        """Writes a line of `longhaul` itself."""
        self.writer_for(OWN)(line)

    def write(self, text: str) -> None:
        """Writes lines that are for people."""
        if self._is_json:
            for line in text.splitlines():
                self._write_object(OWN, line)
        else:
            self._print(text)

    def _write_object(self, name: str, line: str) -> None:
        if line.startswith("{"):
            self._print(f"{line}\n")
        elif line.strip():
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            self._print(
                as_json({"time": now, "level": "INFO", "logger": name, "message": line, "process": name}) + "\n"
            )

    def _print(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            pass

    def _prefix(self, name: str) -> str:
        prefix = f"{name:<{self.width}} |"
        colour = self._colours.get(name)
        return f"\x1b[{colour}m{prefix}\x1b[0m" if self._coloured and colour else prefix
