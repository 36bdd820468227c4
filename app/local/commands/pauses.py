"""`longhaul pause`, `resume` and `pauses`: models, or projects in them, whose responses stay in line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from app.local.commands.operator_client import ask
from app.local.commands.output import Column, JsonOption, column, moment, say, show, show_json
from app.operations.words import resume_command

commands = typer.Typer()

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Its name, as the models file has it.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="A project's id or name: others go on.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="For the audit log and other operators.")]

COLUMNS = (
    column("model"),
    Column("project", lambda pause: pause["project"] or "all"),
    moment("since (UTC)", "since"),
    column("by", "actor"),
    column("reason"),
)


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
        say(f"{_name(made)} is paused; end it by: {resume_command(made['model'], made['project'])}")


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
    say(f"{_name({'model': model, 'project': project})} is resumed")
    for each in left:
        say(f"{_name(each)} is still paused; end it by: {resume_command(each['model'], each['project'])}")


@commands.command()
def pauses(as_json: JsonOption = False) -> None:
    """List what is paused."""
    show(ask(lambda api: api.get("pauses"))["data"], COLUMNS, as_json=as_json)


def _name(pause: Mapping[str, Any]) -> str:
    return pause["model"] if pause["project"] is None else f"{pause['model']} for project {pause['project']}"
