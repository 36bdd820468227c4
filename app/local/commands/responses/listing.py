"""The columns of `longhaul responses list`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.local.commands.output import Column, column, moment, number
from app.protocol.text import shortened

ERROR_CHARS = 44
"""Of an error in a list; `show` has all of it."""


def _message(entry: Mapping[str, Any]) -> str:
    return shortened(f"{entry['error_code']}: {(entry['error'] or {}).get('message') or ''}", ERROR_CHARS)


COLUMNS = (
    column("id"),
    column("status"),
    Column("error", lambda entry: entry["error_code"]),
    column("worker", "sent_to"),
    number("crashes"),
    Column("project", lambda entry: entry["project_name"] or entry["project"]),
    moment("created (UTC)", "created_at"),
    number("attempt"),
    moment("finished (UTC)", "finished_at"),
    column("tier", "service_tier"),
    column("model"),
)
"""What tells most about a response comes first."""
_FIXED = {"status": "status", "model": "model", "project": "project", "service_tier": "tier"}
"""The columns of which a filter's field says the value."""


def columns_for(query: Mapping[str, Any]) -> list[Column]:
    """The columns of a list with this query: none that has the same value in each line, and messages if all failed."""
    statuses = query.get("status") or ()
    fixed = {title for field, title in _FIXED.items() if query.get(field) and (field != "status" or len(statuses) == 1)}
    if statuses and "failed" not in statuses:
        fixed.add("error")
    shown = [each for each in COLUMNS if each.title not in fixed]
    if statuses == ["failed"]:
        return [replace(each, of=_message) if each.title == "error" else each for each in shown]
    return shown
