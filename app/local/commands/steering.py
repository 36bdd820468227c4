"""`longhaul drain` and `undrain`, `pause`, `resume` and `pauses`: workers that are sent nothing more, and models, or
projects in them, whose responses stay in line."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from app.local.commands.operator_client import OperatorClient, ask, path
from app.local.commands.output import Column, Entry, JsonOption, column, moment, progress, say, show, show_json
from app.local.errors import LocalError
from app.operations.words import count_of, resume_command

POLL_SECONDS = 1.0

commands = typer.Typer()

ReasonOption = Annotated[str | None, typer.Option("--reason", help="For the audit log and other operators.")]
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Its name, as `longhaul workers` shows it.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Return once it has no responses any more.")]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Its name, as the models file has it.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="A project's id or name: others go on.")]

PAUSES = (
    column("model"),
    Column("project", lambda pause: pause["project"] or "all"),
    moment("since (UTC)", "since"),
    column("by", "actor"),
    column("reason"),
)


@commands.command()
def drain(
    worker: WorkerArgument,
    wait: WaitOption = False,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a worker nothing more: what it runs goes on to its end, what it has not begun goes to others."""
    found = ask(lambda api: _drain(api, worker, reason, wait=wait))
    if as_json:
        show_json([found] if found is not None else [])
    else:
        say(f"{worker} has stopped" if found is None else _line(found))


@commands.command()
def undrain(worker: WorkerArgument, reason: ReasonOption = None, as_json: JsonOption = False) -> None:
    """Send a drained worker responses again."""
    found = ask(lambda api: api.post(path("workers", worker, "undrain"), {"reason": reason}))
    if as_json:
        show_json([found])
    else:
        say(_line(found))


async def _drain(api: OperatorClient, worker: str, reason: str | None, *, wait: bool) -> Any:
    """The worker; None: it has stopped, and others have what it ran."""
    found = await api.post(path("workers", worker, "drain"), {"reason": reason})
    total = found["running"] + found["sent"]
    with progress(f"{worker} drains", total) as show_done:
        while wait and found is not None and found["state"] != "drained":
            if found["draining_since"] is None:
                raise LocalError(f"{worker} was given back meanwhile")
            show_done(max(total - found["running"] - found["sent"], 0))
            await asyncio.sleep(POLL_SECONDS)
            found = next((each for each in (await api.get("workers"))["data"] if each["name"] == worker), None)
    return found


def _line(worker: Entry) -> str:
    has = worker["running"] + worker["sent"]
    what = f"has {count_of(has, 'response')}" if has else "has no responses"
    return f"{worker['name']} is {worker['state']}; it {what}"


@commands.command()
def pause(
    model: ModelArgument,
    project: ProjectOption = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a model's responses in line: background waits, foreground is refused, and what has begun goes on."""
    made = ask(lambda api: api.post("pauses", {"model": model, "project": project, "reason": reason}))
    if as_json:
        show_json([made])
    else:
        say(f"{_paused(made)} is paused; end it by: {resume_command(made['model'], made['project'])}")


@commands.command()
def resume(
    model: ModelArgument,
    project: ProjectOption = None,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a model's responses to workers again; each pause is ended as it was begun, with or without a project."""
    left = ask(lambda api: api.delete("pauses", model=model, project=project, reason=reason))["data"]
    if as_json:
        show_json(left)
        return
    say(f"{_paused({'model': model, 'project': project})} is resumed")
    for each in left:
        say(f"{_paused(each)} is still paused; end it by: {resume_command(each['model'], each['project'])}")


@commands.command()
def pauses(as_json: JsonOption = False) -> None:
    """List what is paused."""
    show(ask(lambda api: api.get("pauses"))["data"], PAUSES, as_json=as_json)


def _paused(pause: Entry) -> str:
    return pause["model"] if pause["project"] is None else f"{pause['model']} for project {pause['project']}"
