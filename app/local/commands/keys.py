"""`longhaul keys`: the API keys of projects and of the operators."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.access.secret import new_secret
from app.local.commands.operator_client import administer, path
from app.local.commands.output import Column, JsonOption, column, moment, show
from app.local.home import where_first_key_lies
from config.settings import ConfigError, load_settings

HOUR_SECONDS = 3600
DAY_SECONDS = 24 * HOUR_SECONDS

commands = typer.Typer(help="Make, list and end API keys.", invoke_without_command=True)

ProjectOption = Annotated[str | None, typer.Option("--project", help="The id of the key's project.")]
KeyArgument = Annotated[str, typer.Argument(help="The id of the key: key_...")]

COLUMNS = (
    column("id"),
    column("name"),
    Column("scopes", lambda key: ",".join(key["scopes"])),
    column("key", "redacted_value"),
    moment("expires (UTC)", "expires_at"),
    moment("last used (UTC)", "last_used_at"),
)


@commands.callback()
def show_keys(context: typer.Context) -> None:
    """Says where the first key lies, if no command is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        typer.echo(f"\nThe first admin key: {where_first_key_lies(load_settings())}")


@commands.command()
def create(
    project: ProjectOption = None,
    admin: Annotated[bool, typer.Option("--admin", help="An operator's key, which belongs to no project.")] = False,
    name: Annotated[str, typer.Option(help="What the key is for.")] = "unnamed",
    scopes: Annotated[str | None, typer.Option(help="What it allows, with commas; by default everything.")] = None,
    days: Annotated[float | None, typer.Option(help="After how many days it expires; by default never.")] = None,
) -> None:
    """Make a key and print it: nobody can ever read it again."""
    if (project is not None) == admin:
        raise ConfigError("keys create: name either --project ID or --admin")
    body: dict[str, Any] = {"project": project, "name": name}
    if scopes is not None:
        body["scopes"] = [scope.strip() for scope in scopes.split(",")]
    if days is not None:
        body["expires_in_seconds"] = round(days * DAY_SECONDS)
    _print_new(administer(lambda api: api.post("api_keys", body)))


@commands.command()
def generate() -> None:
    """Print a key that no database knows yet: one for LONGHAUL_ADMIN_KEY."""
    typer.echo(new_secret())


@commands.command("list")
def list_keys(project: ProjectOption = None, as_json: JsonOption = False) -> None:
    """List the keys of a project, or those of the operators; never the keys themselves."""
    listed = "admin_api_keys" if project is None else path("projects", project, "api_keys")
    show(administer(lambda api: api.pages(listed)), COLUMNS, as_json=as_json)


@commands.command()
def revoke(key: KeyArgument) -> None:
    """End a key, and what it has open."""
    administer(lambda api: api.delete(path("api_keys", key)))
    typer.echo(f"{key} has ended")


@commands.command()
def rotate(
    key: KeyArgument,
    overlap_hours: Annotated[float, typer.Option(help="How long the old key works beside the new one.")] = 24,
) -> None:
    """Make a key like this one and print it; the old one ends after the overlap."""
    body = {"overlap_seconds": round(overlap_hours * HOUR_SECONDS)}
    _print_new(administer(lambda api: api.post(path("api_keys", key, "rotate"), body)))


def _print_new(made: dict[str, Any]) -> None:
    """The key alone goes to stdout, so that `KEY=$(longhaul keys create ...)` works."""
    typer.echo(f"{made['id']} ({','.join(made['scopes'])})", err=True)
    typer.echo(made["value"])
