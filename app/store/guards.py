"""Conditions and values that several statements about responses share.

Of SQLAlchemy's (2.0) expressions some are circles of references: `in_`, and what `&` or `|` was applied to. Those wait
for the garbage collector, which comes seldom (config/collector.py): so no request makes them anew.
"""

from __future__ import annotations

import functools
from typing import Any

from sqlalchemy import func
from sqlalchemy.sql import ColumnElement

from app.protocol.status import TRANSITIONS
from app.store.tables import responses


@functools.cache
def may(transition: str) -> ColumnElement[bool]:
    """The guard of a transition: the row is in one of its sources."""
    return responses.c.status.in_(_sources(transition))


def sources(transition: str) -> str:
    """The same sources for a statement that is written out: `'queued', ...`."""
    return ", ".join(f"'{status}'" for status in _sources(transition))


def _sources(transition: str) -> list[str]:
    return sorted(status.value for status in TRANSITIONS[transition].sources)


def sent() -> dict[str, Any]:
    """A message is on its way now."""
    return {"sent_at": func.now(), "sends": responses.c.sends + 1}
