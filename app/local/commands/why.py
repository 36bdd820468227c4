"""`longhaul why`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.local.commands.operator_client import ask, path
from app.local.commands.output import JsonOption, duration, say, show_json

commands = typer.Typer()


@commands.command()
def why(
    response: Annotated[str, typer.Argument(help="The id of the response: resp_...")],
    as_json: JsonOption = False,
) -> None:
    """Say why a response does not run, where it runs, or how it ended."""
    found = ask(lambda api: api.get(path("responses", response, "why")))
    if as_json:
        show_json([found])
        return
    say(f"{found['status']}: {found['text']}", "bold")
    if found["advice"]:
        say(found["advice"])
    for name, value in _details(found):
        say(f"  {name:<14}{value}")


def _details(found: dict[str, Any]) -> list[tuple[str, str]]:
    project = found["project"] + (f" ({found['project_name']})" if found["project_name"] else "")
    details = [
        ("reason", found["reason"]),
        ("model", found["model"]),
        ("project", project),
        ("key", found["key_id"]),
        ("class", f"{found['tier']}, {found['mode']}"),
        ("worker", found["worker"]),
        ("behind about", found["behind"]),
        ("fails in", duration(found["queue_seconds_left"] or found["run_seconds_left"])),
    ]
    return [(name, str(value)) for name, value in details if value is not None]
