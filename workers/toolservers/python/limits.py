"""What code in one sandbox may use up."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

FLOOD_FACTOR = 256
"""Output of this many times `output_bytes` ends the call: nobody reads it, and somebody has to carry it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one sandbox. Seconds of wall or CPU time, bytes, counts."""

    seconds: float = 30.0
    """Of one call."""
    cpu_seconds: int = 300
    """Of one process, over its life; the interpreter lives as long as its session."""
    memory_bytes: int = 512 * 1024**2
    """Address space of one process, and resident memory of all together."""
    output_bytes: int = 64 * 1024
    """Of what one call returns: stdout, stderr, and the result each; and the text of all together."""
    processes: int = 32
    """Processes and threads, the sandbox's own two among them."""
    disk_bytes: int = 64 * 1024**2
    """All files together, which are in memory; and so a single file too."""
    open_files: int = 64
    """Of one process. What sockets and pipes hold is the kernel's memory, which this bounds and nothing else."""

    @property
    def flood_bytes(self) -> int:
        return self.output_bytes * FLOOD_FACTOR


def parse_bytes(text: str) -> int:
    """`65536`, `64KiB`, `512MiB`, `1GiB` as bytes. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,18}) ?(B|KiB|MiB|GiB|)", text.strip())
    if match is None:
        raise ValueError("must be a number of bytes such as 65536, 64KiB or 512MiB")
    return int(match[1]) * _UNITS[match[2]]


def show_bytes(count: int) -> str:
    """The shortest exact form that `parse_bytes` reads."""
    unit = next(unit for unit in ("GiB", "MiB", "KiB", "") if count % _UNITS[unit] == 0 and (count or not unit))
    return f"{count // _UNITS[unit]}{unit}"
