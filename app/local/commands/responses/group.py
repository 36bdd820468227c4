"""`longhaul responses`: see responses of all projects, and cancel and retry many at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from app.local.commands.operator_client import OperatorClient, UrlOption, ask
from app.local.commands.output import (
    Column,
    JsonOption,
    column,
    extra,
    moment,
    number,
    plain,
    progress,
    say,
    show,
    show_json,
)
from app.local.commands.responses.filters import (
    AfterOption,
    BeforeOption,
    CodeOption,
    Filter,
    KeyOption,
    MetadataOption,
    ModelOption,
    ProjectOption,
    RequestOption,
    StatusOption,
    TierOption,
)

POLL_SECONDS = 0.5
PAGE = 100
LATE_SECONDS = 15
"""A response may become visible so much later than another that was inserted after it: an insert takes no longer."""
FOLLOWED = 10_000
"""Responses of which `tail` remembers the status."""

commands = typer.Typer(help="See responses of all projects; cancel and retry many at once.", no_args_is_help=True)

IdsArgument = Annotated[list[str] | None, typer.Argument(help="Ids of responses, in place of a filter or besides it.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="For the audit log.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
AllOption = Annotated[bool, typer.Option("--all", help="Without a filter: act on everything.")]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help="Do not follow the action; it goes on by itself.")]


COLUMNS = (
    column("id"),
    column("status"),
    extra(column("model")),
    extra(column("project")),
    extra(column("tier", "service_tier")),
    moment("created (UTC)", "created_at"),
    extra(moment("finished (UTC)", "finished_at")),
    extra(number("attempt")),
    extra(number("crashes")),
    extra(column("worker", "sent_to")),
    Column("error", lambda entry: entry["error_code"]),
)


@commands.command("list")
def list_responses(
    status: StatusOption = None,
    model: ModelOption = None,
    project: ProjectOption = None,
    key: KeyOption = None,
    request_id: RequestOption = None,
    tier: TierOption = None,
    error_code: CodeOption = None,
    metadata: MetadataOption = None,
    created_after: AfterOption = None,
    created_before: BeforeOption = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    after: Annotated[str | None, typer.Option(help="Those behind the response with this id.")] = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="By default the newest are first.")] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List responses, the newest first."""
    only = Filter(status, model, project, key, request_id, tier, error_code, metadata, created_after, created_before)
    query = {**only.query(), "order": "asc" if oldest_first else "desc"}
    show(ask(lambda api: _listed(api, query, limit, after), url), COLUMNS, as_json=as_json)


async def _listed(api: OperatorClient, query: dict[str, Any], limit: int, after: str | None) -> list[dict[str, Any]]:
    """Page after page, because one may end before it is full."""
    found: list[dict[str, Any]] = []
    while len(found) < limit:
        page = await api.get("responses", **query, limit=min(PAGE, limit - len(found)), after=after)
        found += page["data"]
        if not page["has_more"]:
            break
        after = page["last_id"]
    return found


@commands.command("show")
def show_response(
    response_id: Annotated[str, typer.Argument(help="The id of the response.")],
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what became of a response: its states, attempts, workers and tool calls."""
    story = ask(lambda api: api.get(f"responses/{response_id}"), url)
    if as_json:
        show_json([story])
        return
    _tell(story)


def _tell(story: Mapping[str, Any]) -> None:
    say(f"{story['id']}: {story['status']}", "bold")
    about = f"{story['model']}, {story['service_tier']}, {'background' if story['background'] else 'foreground'}"
    say(f"  project {story['project']}, key {story['key_id'] or '-'}; {about}")
    sizes = f"request {story['request_bytes']} bytes, output {story['output_bytes']}, log {story['log_bytes']}"
    say(f"  {sizes}; metadata {story['metadata']}")
    if story["usage"] is not None:
        say(f"  {story['usage']['input_tokens']} tokens in, {story['usage']['output_tokens']} out")
    links = ("retry_of", "retried_by", "request_id", "traceparent")
    for name, link in ((each.replace("_", " "), story[each]) for each in links):
        if link is not None:
            say(f"  {name} {link}")
    for each in story["moments"]:
        where = f"  (attempt {each['attempt']} on {each['worker']})" if each["attempt"] is not None else ""
        say(f"  {datetime.fromtimestamp(each['at'], UTC):%Y-%m-%d %H:%M:%S.%f} UTC  {each['what']}{where}")
    hand_overs = f"yields {story['yields']}, crashes {story['crashes']}"
    say(f"  attempts {story['attempt']}, {hand_overs}; worker {story['sent_to'] or '-'}")
    for each in story["attempts"]:
        who = "accepted by the API" if each["attempt"] == 0 else f"attempt {each['attempt']}"
        events = f"events {each['first_event']} to {each['last_event']}"
        is_merged = not each["tokens"] and story["finished_at"] is not None
        wrote = "" if is_merged else f", {each['tokens']} tokens in {each['flushes']} flushes"
        say(f"    {who}: {events}{wrote}")
    for call in story["tool_calls"]:
        named = " ".join(part for part in (call["server"], call["tool"]) if part)
        say(f"    item {call['number']}, {call['type']} {named}: {call['status']}")
    if story["error"] is not None:
        say(f"  error {story['error_code']}: {story['error']['message']}", "red")


@commands.command()
def cancel(
    ids: IdsArgument = None,
    status: StatusOption = None,
    model: ModelOption = None,
    project: ProjectOption = None,
    key: KeyOption = None,
    request_id: RequestOption = None,
    tier: TierOption = None,
    metadata: MetadataOption = None,
    created_after: AfterOption = None,
    created_before: BeforeOption = None,
    reason: ReasonOption = None,
    yes: YesOption = False,
    everything: AllOption = False,
    no_wait: NoWaitOption = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel all unfinished responses that match."""
    only = Filter(status, model, project, key, request_id, tier, None, metadata, created_after, created_before, ids)
    _act("cancel", only, _Wanted(reason, yes, everything, no_wait, as_json), url)


@commands.command()
def retry(
    ids: IdsArgument = None,
    status: StatusOption = None,
    model: ModelOption = None,
    project: ProjectOption = None,
    key: KeyOption = None,
    request_id: RequestOption = None,
    tier: TierOption = None,
    error_code: CodeOption = None,
    metadata: MetadataOption = None,
    created_after: AfterOption = None,
    created_before: BeforeOption = None,
    reason: ReasonOption = None,
    yes: YesOption = False,
    everything: AllOption = False,
    no_wait: NoWaitOption = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a new response for each failed one that matches; for cancelled ones by id, or with --status cancelled."""
    times = (created_after, created_before)
    only = Filter(status, model, project, key, request_id, tier, error_code, metadata, *times, ids)
    _act("retry", only, _Wanted(reason, yes, everything, no_wait, as_json), url)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """How an action is to be taken."""

    reason: str | None
    yes: bool
    everything: bool
    no_wait: bool
    as_json: bool


def _act(kind: str, only: Filter, wanted: _Wanted, url: str | None) -> None:
    body = {"kind": kind, "filter": only.body(), "all": wanted.everything}
    if not body["filter"] and not wanted.everything:
        raise typer.BadParameter(f"name responses or a filter, or --all to {kind} everything")
    if wanted.reason is None and not only.names_ids:
        raise typer.BadParameter("--reason: say why, for the audit log; responses named by their ids need none")
    reason = wanted.reason or "named by their ids"
    counted = ask(lambda api: api.post("actions", {**body, "dry_run": True}), url)
    if not _confirmed(kind, counted, wanted):
        raise typer.Exit(1)
    if counted["matching"]:
        action = ask(partial(_carried_out, body={**body, "reason": reason}, wait=not wanted.no_wait), url)
        _say_done(action, as_json=wanted.as_json)


def _confirmed(kind: str, counted: Mapping[str, Any], wanted: _Wanted) -> bool:
    count = f"{counted['matching']:,}" + ("" if counted["is_exact"] else " or more")
    if counted["matching"] == 0:
        typer.echo(f"no response to {kind} matches; nothing was done", err=True)
        return True
    if wanted.yes:
        return True
    if wanted.everything:
        sure = typer.prompt(
            f"This will {kind} EVERYTHING there is, in all projects: {count} responses. Type their number", err=True
        )
        return str(sure).replace(",", "") == str(counted["matching"])
    return typer.confirm(f"{kind.capitalize()} {count} responses?", err=True)


async def _carried_out(api: OperatorClient, *, body: Mapping[str, Any], wait: bool) -> dict[str, Any]:
    action: dict[str, Any] = await api.post("actions", body)
    if not wait:
        return action
    typer.echo(f"{action['id']} goes on by itself if you leave", err=True)
    with progress(action["kind"], action["matched"]) as shown:
        while action["state"] == "running":
            await asyncio.sleep(POLL_SECONDS)
            action = await api.get(f"actions/{action['id']}")
            shown(action["done"] + sum(action["refused"].values()))
    return action


def _say_done(action: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json([action])
        return
    refused = "".join(f"; {count:,} left: {code}" for code, count in action["refused"].items())
    say(f"{action['id']} {action['state']}: {action['kind']} {action['done']:,} of {action['matched']:,}{refused}")


ACTION_COLUMNS = (
    column("id"),
    column("kind"),
    column("state"),
    number("matched"),
    number("done"),
    Column("refused", lambda action: sum(action["refused"].values()) or None, is_number=True),
    moment("created (UTC)", "created_at"),
    column("by", "actor"),
    column("reason"),
)


@commands.command()
def actions(
    stop: Annotated[str | None, typer.Option(help="Stop the action with this id; what it has done stays.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="How many at most.")] = 20,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what was done to many responses, the newest first; or stop it."""
    if stop is not None:
        _say_done(ask(lambda api: api.post(f"actions/{stop}/cancel"), url), as_json=as_json)
        return
    show(ask(lambda api: api.get("actions", limit=limit), url)["data"], ACTION_COLUMNS, as_json=as_json)


@commands.command()
def tail(
    response_id: Annotated[str | None, typer.Argument(help="Follow the events of this response.")] = None,
    status: StatusOption = None,
    model: ModelOption = None,
    project: ProjectOption = None,
    key: KeyOption = None,
    request_id: RequestOption = None,
    tier: TierOption = None,
    error_code: CodeOption = None,
    metadata: MetadataOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow new responses that match, and their statuses; or the types of one response's events."""
    if response_id is not None:
        ask(lambda api: _follow_events(api, response_id, as_json=as_json), url)
        return
    only = Filter(None, model, project, key, request_id, tier, error_code, metadata)
    ask(lambda api: _follow_responses(api, only.query(), frozenset(status or ()), as_json=as_json), url)


async def _follow_events(api: OperatorClient, response_id: str, *, as_json: bool) -> None:
    after: int | None = None
    while True:
        page = await api.get(f"responses/{response_id}/events", starting_after=after)
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


async def _follow_responses(
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
