"""`longhaul limits`: what projects may use at most."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.local.commands.operator_client import administer, path
from app.local.commands.output import JsonOption, column, number, show
from app.local.commands.projects import ProjectArgument

commands = typer.Typer(help="Set, list and remove what projects may use at most.", no_args_is_help=True)

KindArgument = Annotated[str, typer.Argument(help="What is limited: requests_per_minute, tokens_per_day, ...")]
ModelOption = Annotated[str, typer.Option(help="The name of a model; `*`: all models together.")]

COLUMNS = (column("kind"), column("model"), number("value"), number("taken"))


@commands.command("set")
def set_limit(
    project: ProjectArgument,
    kind: KindArgument,
    value: Annotated[int, typer.Argument(help="The most of it.")],
    model: ModelOption = "*",
    as_json: JsonOption = False,
) -> None:
    """Set a limit, and list those of the project."""
    _set(project, {"kind": kind, "model": model, "value": value}, as_json=as_json)


@commands.command("list")
def list_limits(project: ProjectArgument, as_json: JsonOption = False) -> None:
    """List the limits of a project with what is taken of them."""
    found = administer(lambda api: api.get(path("projects", project, "limits")))
    show(found["data"], COLUMNS, as_json=as_json)


@commands.command()
def remove(project: ProjectArgument, kind: KindArgument, model: ModelOption = "*", as_json: JsonOption = False) -> None:
    """Remove a limit, and list those that the project still has."""
    _set(project, {"kind": kind, "model": model, "value": None}, as_json=as_json)


def _set(project: str, body: dict[str, Any], *, as_json: bool) -> None:
    left = administer(lambda api: api.post(path("projects", project, "limits"), body))
    show(left["data"], COLUMNS, as_json=as_json)
