"""`longhaul responses tail`: new responses and their statuses, or the events of one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import typer

from app.local.commands.operator_client import OperatorClient, path
from app.local.commands.output import Column, column, moment, number, plain, say, show_json
from app.protocol.text import shortened

POLL_SECONDS = 0.5
PAGE = 100
LATE_SECONDS = 15
"""A response may become visible so much later than another that was inserted after it: an insert takes no longer."""
FOLLOWED = 10_000
"""Responses of which `tail` remembers the status."""

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


async def follow_events(api: OperatorClient, response_id: str, *, as_json: bool) -> None:
    after: int | None = None
    while True:
        page = await api.get(path("responses", response_id, "events"), starting_after=after)
        for event in page["data"]:
            after = event["sequence_number"]
            show_json([event]) if as_json else _say_cells(after, event["type"])
        if not page["data"] and page["status"] not in ("queued", "in_progress"):
            if not as_json:
                say(page["status"])
            return
        if not page["has_more"]:
            await asyncio.sleep(POLL_SECONDS)


@dataclass(slots=True)
class _Followed:
    """The responses that `tail` has seen, with the last status of each."""

    statuses: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def changed(self, entry: Mapping[str, Any]) -> bool:
        known, status = self.statuses.get(entry["id"]), str(entry["status"])
        self.statuses[entry["id"]] = status
        while len(self.statuses) > FOLLOWED:
            self.statuses.popitem(last=False)
        return known != status

    @property
    def unfinished(self) -> list[str]:
        return [each for each, status in self.statuses.items() if status in ("queued", "in_progress")]


async def follow_responses(
    api: OperatorClient, query: dict[str, Any], statuses: frozenset[str], *, as_json: bool
) -> None:
    followed = _Followed()
    newest = (await api.get("responses", limit=1))["data"]
    since = newest[0]["inserted_at"] if newest else 0
    for entry in [each async for each in _new_since(api, query, since)]:
        followed.changed(entry)
    while True:
        found = [each async for each in _new_since(api, query, since)]
        since = max([since, *(each["inserted_at"] - LATE_SECONDS for each in found)])
        known = {each["id"] for each in found}
        found += [each async for each in _again(api, [each for each in followed.unfinished if each not in known])]
        for entry in found:
            if followed.changed(entry) and (not statuses or entry["status"] in statuses):
                _say_entry(entry, as_json=as_json)
        await asyncio.sleep(POLL_SECONDS)


async def _new_since(api: OperatorClient, query: dict[str, Any], since: int) -> AsyncIterator[dict[str, Any]]:
    after: str | None = None
    while True:
        page = await api.get("responses", **query, created_after=since, order="asc", limit=PAGE, after=after)
        for entry in page["data"]:
            yield entry
        if not page["has_more"]:
            return
        after = page["last_id"]


async def _again(api: OperatorClient, ids: list[str]) -> AsyncIterator[dict[str, Any]]:
    for first in range(0, len(ids), PAGE):
        for entry in (await api.get("responses", ids=ids[first : first + PAGE], limit=PAGE))["data"]:
            yield entry


def _say_entry(entry: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json([entry])
    else:
        _say_cells(*(value for each in COLUMNS if (value := each.of(entry)) is not None))


def _say_cells(*values: object) -> None:
    typer.echo("\t".join(plain(str(value)) for value in values))
