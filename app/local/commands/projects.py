"""`longhaul projects`: what owns keys and responses, and what it may use."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.local.commands.operator_client import administer, path
from app.local.commands.output import Column, Entry, JsonOption, column, moment, number, show

NONE = "none"

commands = typer.Typer(help="Make, list and archive projects.", no_args_is_help=True)

ProjectArgument = Annotated[str, typer.Argument(help="The id of the project.")]
ModelsOption = Annotated[
    str | None,
    typer.Option(help="Names of the models that it may use, with commas; `*`: all, `!NAME`: but this one; `none`."),
]
ServersOption = Annotated[str | None, typer.Option(help="The same of labels of MCP servers.")]
TierOption = Annotated[str | None, typer.Option(help="The best service tier of its responses.")]
WeightOption = Annotated[
    float | None, typer.Option(help="Its share of every queue, beside projects with 1; 0.001 to 1000.")
]


def _state(project: Entry) -> str:
    # `default` goes on after an erasure.
    return "active" if project["archived_at"] is None else "erased" if project["erased_at"] else "archived"


COLUMNS = (
    column("id"),
    column("name"),
    Column("state", _state),
    Column("models", lambda project: _listed(project["models"])),
    Column("tool servers", lambda project: _listed(project["tool_servers"])),
    column("tier", "top_tier"),
    number("weight"),
    number("stored", "stored_bytes"),
    number("conversation days"),
    moment("erased at (UTC)", "erase_at"),
)


@commands.command()
def create(
    name: Annotated[str, typer.Argument(help="Whom or what it is for.")],
    models: ModelsOption = None,
    tool_servers: ServersOption = None,
    tier: TierOption = None,
    weight: WeightOption = None,
) -> None:
    """Make a project and print its id."""
    body = {"name": name, **_fields(models, tool_servers, tier, weight)}
    typer.echo(administer(lambda api: api.post("projects", body))["id"])


@commands.command("list")
def list_projects(as_json: JsonOption = False) -> None:
    """List all projects, and what they may use."""
    show(administer(lambda api: api.pages("projects", include_archived=True)), COLUMNS, as_json=as_json)


@commands.command()
def update(
    project: ProjectArgument,
    models: ModelsOption = None,
    tool_servers: ServersOption = None,
    tier: TierOption = None,
    weight: WeightOption = None,
    conversation_days: Annotated[
        int | None, typer.Option(help="Days that unchanged conversations are kept; 0: all.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set what a project may use from now on, and how long its conversations are kept; what is left out stays."""
    body = {"conversation_days": conversation_days, **_fields(models, tool_servers, tier, weight)}
    _change(body, project, as_json=as_json)


@commands.command()
def archive(project: ProjectArgument, as_json: JsonOption = False) -> None:
    """End all keys of a project; what it has in the background runs to its end."""
    _change(None, project, "archive", as_json=as_json)


@commands.command()
def erase(
    project: ProjectArgument,
    days: Annotated[int, typer.Option(help="Begin after so many days.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Archive a project, and erase everything of it: responses, conversations, keys, limits; usage stays."""
    _change({"after_days": days}, project, "erase", as_json=as_json)


def _change(body: dict[str, Any] | None, *names: str, as_json: bool) -> None:
    show([administer(lambda api: api.post(path("projects", *names), body))], COLUMNS, as_json=as_json)


def _fields(models: str | None, tool_servers: str | None, tier: str | None, weight: float | None) -> dict[str, Any]:
    lists = {"models": _permitted(models), "tool_servers": _permitted(tool_servers)}
    return {**lists, "top_tier": tier, "weight": weight}


def _permitted(sent: str | None) -> list[str] | None:
    """`all` stands for `*`, which shells replace."""
    if sent is None:
        return None
    names = filter(None, map(str.strip, sent.split(",")))
    return [] if sent == NONE else ["*" if name == "all" else name for name in names]


def _listed(names: list[str]) -> str:
    return ",".join(names) or NONE
