"""`longhaul keys`: the API keys of projects and of the operators."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from app.access.caller import OPERATOR_SCOPES, PROJECT_SCOPES, Scope
from app.access.new_keys import CreatedKey
from app.access.secret import new_secret
from app.local.commands.database import administer
from app.local.home import where_first_key_lies
from app.store.tenants import api_keys
from app.store.tenants.api_keys import KeyRow
from config.settings import ConfigError, load_settings

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS

commands = typer.Typer(help="Make, list and end API keys.", invoke_without_command=True)

ProjectOption = Annotated[str | None, typer.Option("--project", help="The id of the key's project.")]
KeyArgument = Annotated[str, typer.Argument(help="The id of the key: key_...")]


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
    allowed = OPERATOR_SCOPES if project is None else PROJECT_SCOPES
    wanted = allowed if scopes is None else _scopes(scopes)
    lifetime = None if days is None else days * DAY_SECONDS
    _print_new(administer(lambda to: to.create_key(project, name, wanted, lifetime)))


@commands.command()
def generate() -> None:
    """Print a key that no database knows yet: one for LONGHAUL_ADMIN_KEY."""
    typer.echo(new_secret())


@commands.command("list")
def list_keys(project: ProjectOption = None) -> None:
    """List keys, of one project or of all; never the keys themselves."""
    found = administer(lambda to: api_keys.find_all(to.db) if project is None else api_keys.find_of(to.db, project))
    for key in found:
        typer.echo(_line(key))


@commands.command()
def revoke(key: KeyArgument) -> None:
    """End a key, and what it has open."""
    typer.echo(_line(administer(lambda to: to.revoke_key(key))))


@commands.command()
def rotate(
    key: KeyArgument,
    overlap_hours: Annotated[float, typer.Option(help="How long the old key works beside the new one.")] = 24,
) -> None:
    """Make a key like this one and print it; the old one ends after the overlap."""
    _print_new(administer(lambda to: to.rotate_key(key, overlap_hours * HOUR_SECONDS)))


def _scopes(sent: str) -> frozenset[Scope]:
    try:
        return frozenset(Scope(name.strip()) for name in sent.split(","))
    except ValueError:
        names = ", ".join(scope.value for scope in Scope)
        raise ConfigError(f"--scopes: expected some of {names}, with commas") from None


def _print_new(made: CreatedKey) -> None:
    """The key alone goes to stdout, so that `KEY=$(longhaul keys create ...)` works."""
    typer.echo(_line(made.row), err=True)
    typer.echo(made.secret)


def _line(key: KeyRow) -> str:
    fields = (key.id, key.project or "(operators)", key.name, ",".join(key.scopes), key.shown, key.state)
    times = (f"expires {_time(key.expires_at)}", f"last used {_time(key.last_used_at)}")
    return "\t".join((*fields, *times))


def _time(moment: datetime | None) -> str:
    return "-" if moment is None else moment.strftime("%Y-%m-%d %H:%M")
