"""`longhaul keys`, `longhaul projects` and `longhaul limits`: what operators do with callers."""

from __future__ import annotations

from typing import Annotated

import typer

from app.local.home import Home
from app.local.reporting import one_line
from config.settings import ConfigError, load_settings

ALL = "all"

keys = typer.Typer(help="Make, list and end API keys.", invoke_without_command=True)
projects = typer.Typer(help="Make, list and archive projects.", no_args_is_help=True)
limits = typer.Typer(help="Set, list and remove what projects may use at most.", no_args_is_help=True)

ProjectOption = Annotated[str | None, typer.Option("--project", help="The id of the key's project.")]
ModelsOption = Annotated[str, typer.Option(help="Names of the models that it may use, with commas; `all`; `none`.")]
ServersOption = Annotated[str, typer.Option(help="Labels of the MCP servers that it may use; `all`; `none`.")]
WeightOption = Annotated[float, typer.Option(help="Its share of every queue, beside projects with 1; 0.001 to 1000.")]

KindArgument = Annotated[str, typer.Argument(help="What is limited: requests_per_minute, tokens_per_day, ...")]
ProjectArgument = Annotated[str, typer.Argument(help="The id of the project.")]
ModelOption = Annotated[str, typer.Option(help="The name of a model; `*`: all models together.")]


@keys.callback()
def show_keys(context: typer.Context) -> None:
    """Says where the first key lies, if no command is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        with one_line():
            typer.echo(f"\nThe first admin key: {Home.prepare(load_settings().home).first_key}")


@keys.command()
def create(
    project: ProjectOption = None,
    admin: Annotated[bool, typer.Option("--admin", help="An operator's key, which belongs to no project.")] = False,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "unnamed",
    scopes: Annotated[str | None, typer.Option(help="What it allows, with commas; by default everything.")] = None,
    days: Annotated[float | None, typer.Option(help="After how many days it expires; by default never.")] = None,
) -> None:
    """Make a key and print it: nobody can ever read it again."""
    with one_line():
        if (project is not None) == admin:
            raise ConfigError("keys create: name either --project ID or --admin")
        from app.local.commands import tenants

        _print_new(*tenants.create_key(project, name, scopes, days))


@keys.command("list")
def list_keys(
    project: ProjectOption = None,
) -> None:
    """List keys, of one project or of all; never the keys themselves."""
    with one_line():
        from app.local.commands import tenants

        for line in tenants.list_keys(project):
            typer.echo(line)


@keys.command()
def revoke(key: Annotated[str, typer.Argument(help="The id of the key: key_...")]) -> None:
    """End a key, and what it has open."""
    with one_line():
        from app.local.commands import tenants

        typer.echo(tenants.revoke_key(key))


@keys.command()
def rotate(
    key: Annotated[str, typer.Argument(help="The id of the key: key_...")],
    overlap_hours: Annotated[float, typer.Option(help="How long the old key works beside the new one.")] = 24,
) -> None:
    """Make a key like this one and print it; the old one ends after the overlap."""
    with one_line():
        from app.local.commands import tenants

        _print_new(*tenants.rotate_key(key, overlap_hours))


@projects.command("create")
def create_project(
    name: Annotated[str, typer.Argument(help="Whom or what it is for.")],
    models: ModelsOption = ALL,
    tool_servers: ServersOption = ALL,
    tier: Annotated[str, typer.Option(help="The best service tier of its responses.")] = "default",
    weight: WeightOption = 1.0,
) -> None:
    """Make a project and print its id."""
    with one_line():
        from app.local.commands import tenants

        typer.echo(tenants.create_project(name, models, tool_servers, tier, weight))


@projects.command("list")
def list_projects() -> None:
    """List all projects, and what they may use."""
    with one_line():
        from app.local.commands import tenants

        for line in tenants.list_projects():
            typer.echo(line)


@projects.command("update")
def update_project(
    project: ProjectArgument,
    weight: WeightOption,
) -> None:
    """Set a project's share of every queue, beside the projects that wait at the same time."""
    with one_line():
        from app.local.commands import tenants

        typer.echo(tenants.set_weight(project, weight))


@projects.command()
def permit(
    project: Annotated[str, typer.Argument(help="The id of the project.")],
    models: ModelsOption,
    tool_servers: ServersOption,
    tier: Annotated[str | None, typer.Option(help="The best service tier; by default it stays.")] = None,
) -> None:
    """Set what a project may use from now on."""
    with one_line():
        from app.local.commands import tenants

        typer.echo(tenants.permit(project, models, tool_servers, tier))


@projects.command()
def archive(project: Annotated[str, typer.Argument(help="The id of the project.")]) -> None:
    """End all keys of a project; what it has in the background runs to its end."""
    with one_line():
        from app.local.commands import tenants

        typer.echo(tenants.archive_project(project))


@limits.command("set")
def set_limit(
    project: ProjectArgument,
    kind: KindArgument,
    value: Annotated[int, typer.Argument(help="The most of it.")],
    model: ModelOption = "*",
) -> None:
    """Set a limit, and list those of the project."""
    with one_line():
        from app.local.commands import tenants

        for line in tenants.set_limit(project, kind, value, model):
            typer.echo(line)


@limits.command("list")
def list_limits(project: ProjectOption = None) -> None:
    """List the limits of all projects, or of one with what is taken of them."""
    with one_line():
        from app.local.commands import tenants

        for line in tenants.list_limits(project):
            typer.echo(line)


@limits.command("remove")
def remove_limit(project: ProjectArgument, kind: KindArgument, model: ModelOption = "*") -> None:
    """Remove a limit, and list those that the project still has."""
    with one_line():
        from app.local.commands import tenants

        for line in tenants.remove_limit(project, kind, model):
            typer.echo(line)


def _print_new(line: str, secret: str) -> None:
    """The key alone goes to stdout, so that `KEY=$(longhaul keys create ...)` works."""
    typer.echo(line, err=True)
    typer.echo(secret)
