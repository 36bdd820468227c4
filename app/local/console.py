"""The terminal: whole lines, each with the name of the process that printed it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

COLOURS = (36, 33, 32, 35, 34, 31)
"""ANSI foreground colours, assigned to processes in turn."""
OWN = "longhaul"


class Console:
    """Writes `name | line`, with names padded to `width`. Ignores a terminal that is gone: stopping must go on."""

    def __init__(self) -> None:
        self.width = len(OWN)
        self._colours: dict[str, int] = {}
        self._coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def writer_for(self, name: str) -> Callable[[str], None]:
        """A function that writes the lines of one process."""
        self.width = max(self.width, len(name))
        if name != OWN:
            self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return lambda line: self.write(f"{self._prefix(name)} {line}\n")

    def log(self, line: str) -> None:
        """Writes a line of `longhaul` itself."""
        self.write(f"{self._prefix(OWN)} {line}\n")

    def write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            pass

    def _prefix(self, name: str) -> str:
        prefix = f"{name:<{self.width}} |"
        colour = self._colours.get(name)
        return f"\x1b[{colour}m{prefix}\x1b[0m" if self._coloured and colour else prefix
