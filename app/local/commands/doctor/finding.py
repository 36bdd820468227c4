"""The findings of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    """The part works, but not as it should."""
    FAIL = "fail"
    """Something does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    """The part that was looked at."""
    level: Level
    found: str
    to_do: str = ""
    """One line, for operators; empty if all is well."""


Findings: TypeAlias = list[Finding]


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def warn(check: str, found: str, to_do: str) -> Finding:
    return Finding(check, Level.WARN, found, to_do)


def fail(check: str, found: str, to_do: str) -> Finding:
    return Finding(check, Level.FAIL, found, to_do)


def of_error(check: str, error: BaseException, to_do: str) -> Finding:
    """An error whose message is a line for operators."""
    return fail(check, str(error), to_do)
