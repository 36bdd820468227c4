"""`longhaul responses`: see responses of all projects, and cancel and retry many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from app.local.commands.operator_client import PAGE, OperatorClient, ask, path
from app.local.commands.output import (
    Column,
    JsonOption,
    column,
    moment,
    number,
    progress,
    say,
    show,
    show_json,
)
from app.local.commands.responses.filters import Filter
from app.local.commands.responses.grouped import grouped
from app.operations.words import count_of

commands = typer.Typer(help="See responses of all projects; cancel and retry many at once.", no_args_is_help=True)

POLL_SECONDS = 0.5

COLUMNS = (
    column("id"),
    column("status"),
    column("error", "error_code"),
    column("worker", "sent_to"),
    number("crashes"),
    Column("project", lambda entry: entry["project_name"] or entry["project"]),
    moment("created (UTC)", "created_at"),
    number("attempt"),
    moment("finished (UTC)", "finished_at"),
    column("tier", "service_tier"),
    column("model"),
)
"""Columns of a list: the most telling ones come first."""


@commands.command("list")
@grouped(without=("ids",))
def list_responses(
    only: Filter,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    after: Annotated[str | None, typer.Option(help="Those behind the response with this id.")] = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="By default the newest are first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List responses, the newest first."""
    query = {**only.query(), "order": "asc" if oldest_first else "desc"}
    found = ask(lambda api: api.pages("responses", limit, after, **query))
    show(found, COLUMNS, as_json=as_json)


@commands.command("show")
def show_response(
    response_id: Annotated[str, typer.Argument(help="The id of the response.")],
    as_json: JsonOption = False,
) -> None:
    """Tell what became of a response: its states, attempts, workers and tool calls."""
    story = ask(lambda api: api.get(path("responses", response_id)))
    if as_json:
        show_json([story])
        return
    _tell(story)


def _tell(story: Mapping[str, Any]) -> None:
    say(f"{story['id']}: {story['status']}", "bold")
    about = f"{story['model']}, {story['service_tier']}, {'background' if story['background'] else 'foreground'}"
    project = story["project"] + (f" ({story['project_name']})" if story["project_name"] else "")
    say(f"  project {project}, key {story['key_id'] or '-'}; {about}")
    sizes = f"request {story['request_bytes']:,} bytes"
    if story["finished_at"] is not None:
        sizes += f", output {story['output_bytes']:,} bytes, log {story['log_bytes']:,} bytes"
    say(f"  {sizes}; metadata {story['metadata']}")
    if story["usage"] is not None:
        say(f"  {story['usage']['input_tokens']} tokens in, {story['usage']['output_tokens']} out")
    links = ("batch_id", "retry_of", "retried_by", "request_id", "traceparent")
    for name, link in ((each.replace("_", " "), story[each]) for each in links):
        if link is not None:
            say(f"  {name} {link}")
    for each in story["moments"]:
        where = f"  (attempt {each['attempt']} on {each['worker']})" if each["attempt"] is not None else ""
        at = datetime.fromtimestamp(each["at"], UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
        say(f"  {at} UTC  {each['what']}{where}")
    hand_overs = f"yields {story['yields']}, crashes since it made progress {story['crashes']}"
    say(f"  attempts {story['attempt']}, {hand_overs}; worker {story['sent_to'] or '-'}")
    for each in story["attempts"]:
        who = "accepted by the API" if each["attempt"] == 0 else f"attempt {each['attempt']}"
        events = f"events {each['first_event']} to {each['last_event']}"
        is_merged = not each["tokens"] and story["finished_at"] is not None
        flushes = count_of(each["flushes"], "flush", "flushes")
        wrote = "" if is_merged or not each["attempt"] else f", {each['tokens']:,} tokens in {flushes}"
        say(f"    {who}: {events}{wrote}")
    for call in story["tool_calls"]:
        named = " ".join(part for part in (call["server"], call["tool"]) if part)
        say(f"    item {call['number']}, {call['type']} {named}: {call['status']}")


@dataclass(frozen=True, slots=True)
class ActionOptions:
    """How an action is to be taken."""

    reason: Annotated[str | None, typer.Option(help="For the audit log.")] = None
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
    everything: Annotated[bool, typer.Option("--all", help="Without a filter: act on everything.")] = False
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not follow the action; it goes on by itself.")] = False
    as_json: JsonOption = False


@commands.command()
@grouped(without=("error_code",))
def cancel(only: Filter, wanted: ActionOptions) -> None:
    """Cancel all unfinished responses that match."""
    _act("cancel", only, wanted)


@commands.command()
@grouped()
def retry(only: Filter, wanted: ActionOptions) -> None:
    """Create a new response for each failed one that matches; for cancelled ones by id, or with --status cancelled."""
    _act("retry", only, wanted)


def _act(kind: str, only: Filter, wanted: ActionOptions) -> None:
    body = {"kind": kind, "filter": only.body(), "all": wanted.everything}
    if not body["filter"] and not wanted.everything:
        raise typer.BadParameter(f"name responses or a filter, or --all to {kind} everything")
    if wanted.reason is None and not only.ids:
        raise typer.BadParameter("--reason: say why, for the audit log; responses named by their ids need none")
    reason = wanted.reason or "named by their ids"
    counted = ask(lambda api: api.post("actions", {**body, "dry_run": True}))
    if not _confirmed(kind, counted, wanted):
        raise typer.Exit(1)
    if _is_any(counted):
        action = ask(partial(_carried_out, body={**body, "reason": reason}, wait=not wanted.no_wait))
        _say_done(action, as_json=wanted.as_json)


def _confirmed(kind: str, counted: Mapping[str, Any], wanted: ActionOptions) -> bool:
    if not _is_any(counted):
        typer.echo(f"no response to {kind} matches; nothing was done", err=True)
        return True
    if wanted.yes:
        return True
    if wanted.everything:
        sure = typer.prompt(
            f"This will {kind} EVERYTHING there is, in all projects: {_reach(counted)}. Type the number of responses",
            err=True,
        )
        return str(sure).replace(",", "") == str(counted["matching"])
    return typer.confirm(f"{kind.capitalize()} {_reach(counted)}?", err=True)


def _is_any(counted: Mapping[str, Any]) -> bool:
    return any(counted[name] for name in ("matching", "batches", "lines_in_files"))


def _reach(counted: Mapping[str, Any]) -> str:
    """What an action would act on."""
    matching = counted["matching"]
    responses = count_of(matching, "response") if counted["is_exact"] else f"{matching:,} or more responses"
    batches, lines = counted["batches"], counted["lines_in_files"]
    more = [count_of(batches, "batch", "batches")] if batches else []
    more += [f"{count_of(lines, 'line')} in files"] if lines else []
    return " and ".join([", ".join([responses, *more[:-1]]), *more[-1:]])


async def _carried_out(api: OperatorClient, *, body: Mapping[str, Any], wait: bool) -> dict[str, Any]:
    action: dict[str, Any] = await api.post("actions", body)
    if not wait:
        return action
    typer.echo(f"{action['id']} goes on by itself if you leave", err=True)
    with progress(action["kind"], action["matched"]) as shown:
        while action["state"] == "running":
            await asyncio.sleep(POLL_SECONDS)
            action = await api.get(path("actions", action["id"]))
            shown(action["done"] + sum(action["refused"].values()))
    return action


def _say_done(action: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json([action])
        return
    more = [f"{count:,} left: {code}" for code, count in action["refused"].items()]
    meanwhile = action["matched"] - action["done"] - sum(action["refused"].values())
    if action["state"] == "completed" and meanwhile > 0:
        more.append(f"{meanwhile:,} had ended by then")
    if action["batches"]:
        more.append(f"{count_of(action['batches'], 'batch', 'batches')} cancelled")
    done = f"{action['kind']} {action['done']:,} of {action['matched']:,}"
    say("; ".join([f"{action['id']} {action['state']}: {done}", *more]))


ACTION_COLUMNS = (
    column("id"),
    column("kind"),
    column("state"),
    number("matched"),
    number("done"),
    number("batches"),
    Column("refused", lambda action: sum(action["refused"].values()) or None, is_number=True),
    moment("created (UTC)", "created_at"),
    column("by", "actor"),
    column("reason"),
)


@commands.command()
def actions(
    stop: Annotated[str | None, typer.Option(help="Stop the action with this id; what it has done stays.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=PAGE, help="How many at most.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List what was done to many responses, the newest first; or stop it."""
    if stop is not None:
        _say_done(ask(lambda api: api.post(path("actions", stop, "cancel"))), as_json=as_json)
        return
    show(ask(lambda api: api.get("actions", limit=limit))["data"], ACTION_COLUMNS, as_json=as_json)


@commands.command()
def tail(
    response_id: Annotated[str, typer.Argument(help="The id of the response.")],
    as_json: JsonOption = False,
) -> None:
    """Follow the types of a response's events."""
    ask(lambda api: _follow(api, response_id, as_json=as_json))


async def _follow(api: OperatorClient, response_id: str, *, as_json: bool) -> None:
    after: int | None = None
    while True:
        page = await api.get(path("responses", response_id, "events"), starting_after=after)
        for event in page["data"]:
            after = event["sequence_number"]
            show_json([event]) if as_json else say(f"{after} {event['type']}")
        if not page["data"] and page["status"] not in ("queued", "in_progress"):
            if not as_json:
                say(page["status"])
            return
        if not page["has_more"]:
            await asyncio.sleep(POLL_SECONDS)
