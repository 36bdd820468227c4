"""What one call came to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Ending(Enum):
    """Why a call did not come to its own end."""

    TIMEOUT = "timeout"
    MEMORY = "memory"
    CPU = "cpu"
    OUTPUT = "output"
    CANCELLED = "cancelled"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class Outcome:
    """`result` is the value of the last expression as text, `error` a traceback; `images` are PNG in base64."""

    stdout: str = ""
    stderr: str = ""
    result: str | None = None
    error: str | None = None
    images: tuple[str, ...] = ()
    killed: Ending | None = None
    state_lost: bool = False
    """The interpreter is gone, with every name; the next call gets a fresh one."""
