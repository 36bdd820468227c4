"""The terminal: whole lines, with the name of the process that said them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

COLOURS = (36, 33, 32, 35, 34, 31)
"""ANSI foreground colours, given to processes in turn."""
OWN = "longhaul"


class Console:
    """Writes `name | line`, names padded to `width`. A terminal that is gone is no error: stopping must go on."""

    def __init__(self) -> None:
        self.width = len(OWN)
        self._colours: dict[str, int] = {}
        self._coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def named(self, name: str) -> Callable[[str], None]:
        """A sink for the lines of one process."""
        self.width = max(self.width, len(name))
        if name != OWN:
            self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
        return lambda line: self.write(f"{self._prefix(name)} {line}\n")

    def say(self, line: str) -> None:
        """A line of our own."""
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
