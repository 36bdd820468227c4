"""The limits of one sandbox."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

FLOOD_FACTOR = 256
"""A call that prints this many times `output_bytes` is stopped: nobody reads the text, but the server must copy it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the code in one sandbox may use."""

    seconds: float = 30.0
    """Deadline of one call."""
    cpu_seconds: int = 300
    """CPU seconds of one process over its life. The interpreter lives as long as its session."""
    memory_bytes: int = 512 * 1024**2
    """Address space of one process, and memory of all processes together, what is swapped out included."""
    output_bytes: int = 64 * 1024
    """What one call returns: stdout, stderr and result each, and the text of all together."""
    processes: int = 32
    """Processes and threads, including the sandbox's own two."""
    disk_bytes: int = 64 * 1024**2
    """All files together; they are kept in memory."""
    open_files: int = 64
    """Open files of one process. They bound what pipes and sockets hold, whose buffers cannot grow."""

    @property
    def flood_bytes(self) -> int:
        return self.output_bytes * FLOOD_FACTOR


def parse_bytes(text: str) -> int:
    """The bytes of `65536`, `64KiB`, `512MiB` or `1GiB`. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,18}) ?(B|KiB|MiB|GiB|)", text.strip())
    if match is None:
        raise ValueError("must be a number of bytes such as 65536, 64KiB or 512MiB")
    return int(match[1]) * _UNITS[match[2]]


def show_bytes(count: int) -> str:
    """The shortest exact form that `parse_bytes` reads."""
    unit = next(unit for unit in ("GiB", "MiB", "KiB", "") if count % _UNITS[unit] == 0 and (count or not unit))
    return f"{count // _UNITS[unit]}{unit}"
