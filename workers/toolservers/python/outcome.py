"""How one call ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StopReason(Enum):
    """Why the sandbox stopped a call."""

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
    killed: StopReason | None = None
    """Why the call was stopped; None if it ended by itself."""
    state_lost: bool = False
    """The interpreter is gone, with every name; the next call gets a fresh one."""
