"""`longhaul limits`: what projects may use at most."""

from __future__ import annotations

from typing import Annotated

import typer

from app.local.commands.database import administer
from app.local.commands.projects import ProjectArgument
from app.protocol.limits import LimitKind, LimitState
from app.store.tenants import limits
from app.store.tenants.limits import LimitRow
from config.settings import ConfigError

commands = typer.Typer(help="Set, list and remove what projects may use at most.", no_args_is_help=True)

KindArgument = Annotated[str, typer.Argument(help="What is limited: requests_per_minute, tokens_per_day, ...")]
ModelOption = Annotated[str, typer.Option(help="The name of a model; `*`: all models together.")]


@commands.command("set")
def set_limit(
    project: ProjectArgument,
    kind: KindArgument,
    value: Annotated[int, typer.Argument(help="The most of it.")],
    model: ModelOption = "*",
) -> None:
    """Set a limit, and list those of the project."""
    administer(lambda to: to.set_limits(project, model, {_kind(kind): value}))
    list_limits(project)


@commands.command("list")
def list_limits(
    project: Annotated[str | None, typer.Option(help="The id of a project.")] = None,
) -> None:
    """List the limits of all projects, or of one with what is taken of them."""
    if project is None:
        for row in administer(lambda to: limits.find(to.db)):
            typer.echo("\t".join(_fields(row)))
    else:
        for state in administer(lambda to: limits.states(to.db, project)):
            typer.echo("\t".join((*_fields(state), f"taken {state.value - state.remaining}")))


@commands.command()
def remove(project: ProjectArgument, kind: KindArgument, model: ModelOption = "*") -> None:
    """Remove a limit, and list those that the project still has."""
    administer(lambda to: to.remove_limit(project, _kind(kind), model))
    list_limits(project)


def _fields(limit: LimitRow | LimitState) -> tuple[str, ...]:
    return limit.project, limit.model, limit.kind.value, str(limit.value)


def _kind(sent: str) -> LimitKind:
    try:
        return LimitKind(sent)
    except ValueError:
        raise ConfigError(f"limits: expected one of {', '.join(kind.value for kind in LimitKind)}") from None
