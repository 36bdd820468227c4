"""Conditions and values that several statements about responses share.

Some of SQLAlchemy's expressions (2.0) are reference circles: `in_`, and the operands of `&` and `|`. Only the garbage
collector frees them, and it runs seldom. So no request builds one: guards are cached.
"""

from __future__ import annotations

import functools
from typing import Any

from sqlalchemy import func
from sqlalchemy.sql import ColumnElement

from app.protocol.status import TRANSITIONS
from app.store.tables import responses

MAX_CLAIMS = 200
"""How often a response can be begun. Orderly hand-overs count as well: it ends what no worker can end."""


@functools.cache
def may(transition: str) -> ColumnElement[bool]:
    """The guard of a transition: the row's status is one that it starts from."""
    return responses.c.status.in_(_sources(transition))


def sources(transition: str) -> str:
    """The same statuses for a statement in SQL: `'queued', ...`."""
    return ", ".join(f"'{status}'" for status in _sources(transition))


def _sources(transition: str) -> list[str]:
    return sorted(status.value for status in TRANSITIONS[transition].sources)


def has_crashed_out(crashes: Any, max_crashes: int) -> Any:
    """Whether a response with so many crashes must be failed. For a number, or for a column in a statement."""
    return crashes >= max_crashes


def sent_now() -> dict[str, Any]:
    """The columns of a response whose message is sent now."""
    return {"sent_at": func.now(), "sends": responses.c.sends + 1}
