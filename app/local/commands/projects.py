"""`longhaul projects`: what owns keys and responses, and what it may use."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from functools import partial
from typing import Annotated

import typer

from app.access.administration import Administration
from app.local.commands.database import administer
from app.store.tenants import projects
from app.store.tenants.projects import ALL, ProjectRow

NONE = "none"

commands = typer.Typer(help="Make, list and archive projects.", no_args_is_help=True)

ProjectArgument = Annotated[str, typer.Argument(help="The id of the project.")]
ModelsOption = Annotated[
    str, typer.Option(help="Names of the models that it may use, with commas; `*`: all, `!NAME`: but this one; `none`.")
]
ServersOption = Annotated[str, typer.Option(help="The same of labels of MCP servers.")]
WEIGHT = typer.Option(help="Its share of every queue, beside projects with 1; 0.001 to 1000.")
WeightOption = Annotated[float, WEIGHT]


@commands.command()
def create(
    name: Annotated[str, typer.Argument(help="Whom or what it is for.")],
    models: ModelsOption = "all",
    tool_servers: ServersOption = "all",
    tier: Annotated[str, typer.Option(help="The best service tier of its responses.")] = "default",
    weight: WeightOption = 1.0,
) -> None:
    """Make a project and print its id."""
    permitted = _permitted(models), _permitted(tool_servers)
    typer.echo(administer(lambda to: to.create_project(name, *permitted, tier, weight)).id)


@commands.command("list")
def list_projects() -> None:
    """List all projects, and what they may use."""
    for project in administer(lambda to: projects.find_all(to.db)):
        typer.echo(_line(project))


@commands.command()
def update(
    project: ProjectArgument,
    weight: Annotated[float | None, WEIGHT] = None,
    conversation_days: Annotated[
        int | None, typer.Option(help="Days that unchanged conversations are kept; 0: all.")
    ] = None,
) -> None:
    """Set a project's share of every queue, and how long its conversations are kept; what is left out stays."""
    changing = partial(Administration.change_project, weight=weight, conversation_days=conversation_days)
    typer.echo(_line(administer(lambda to: changing(to, project))))


@commands.command()
def permit(
    project: ProjectArgument,
    models: ModelsOption,
    tool_servers: ServersOption,
    tier: Annotated[str | None, typer.Option(help="The best service tier; by default it stays.")] = None,
) -> None:
    """Set what a project may use from now on."""
    permitted = _permitted(models), _permitted(tool_servers)
    typer.echo(_line(administer(lambda to: to.permit(project, *permitted, tier))))


@commands.command()
def archive(project: ProjectArgument) -> None:
    """End all keys of a project; what it has in the background runs to its end."""
    typer.echo(_line(administer(lambda to: to.archive_project(project))))


@commands.command()
def erase(
    project: ProjectArgument,
    days: Annotated[int, typer.Option(help="Begin after so many days.")] = 0,
) -> None:
    """Archive a project, and erase everything of it: responses, conversations, keys, limits; usage stays."""
    typer.echo(_line(administer(lambda to: to.erase_project(project, days))))


def _permitted(sent: str) -> frozenset[str]:
    """`all` stands for `*`, which shells replace."""
    names = frozenset(filter(None, map(str.strip, sent.split(","))))
    return frozenset() if sent == NONE else frozenset(ALL if name == "all" else name for name in names)


def _line(project: ProjectRow) -> str:
    # `default` goes on after an erasure.
    state = "active" if project.archived_at is None else "erased" if project.erased_at else "archived"
    models, servers = _listed(project.models), _listed(project.tool_servers)
    permitted = (f"models {models}", f"tool servers {servers}", f"tier {project.top_tier}")
    amounts: tuple[str, ...] = (f"weight {project.weight:g}", f"stored {project.stored_bytes}")
    if project.conversation_days is not None:
        amounts += (f"conversations {project.conversation_days} days",)
    if project.erase_at is not None:
        amounts += (f"erased at {project.erase_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC",)
    return "\t".join((project.id, project.name, state, *permitted, *amounts))


def _listed(names: Iterable[str]) -> str:
    return ",".join(sorted(names)) or NONE
