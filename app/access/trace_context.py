"""W3C Trace Context: the headers by which programs name the trace that a request belongs to.

Source: https://www.w3.org/TR/trace-context/ (Recommendation of 2021).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_STATE_CHARS = 512
MAX_MEMBERS = 32

_PARENT = re.compile(r"([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY = r"[a-z0-9][a-z0-9_*/@-]{0,255}"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(f"{_KEY}={_VALUE}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace that a request belongs to, and what tracers have to say of it: the values of the two headers."""

    parent: str | None = None
    state: str | None = None


NO_TRACE = TraceContext()


def trace_context(parents: Sequence[str], states: Sequence[str]) -> TraceContext:
    """Returns the trace that the headers name, or NO_TRACE if `traceparent` is not valid, as the standard wants it.

    A `tracestate` that is not valid, or too long to be kept, is left out.
    """
    if len(parents) != 1 or (found := _PARENT.fullmatch(parents[0])) is None:
        return NO_TRACE
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return NO_TRACE
    # Of a later version, only what version 00 has is known.
    return TraceContext(f"00-{trace}-{span}-{flags}", _state(",".join(states)))


def _state(sent: str) -> str | None:
    members = [member.strip(" \t") for member in sent.split(",")]
    members = [member for member in members if member]
    state = ",".join(members)
    if not members or len(members) > MAX_MEMBERS or len(state) > MAX_STATE_CHARS:
        return None
    return state if all(map(_MEMBER.fullmatch, members)) else None
