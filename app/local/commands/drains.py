"""`longhaul drain` and `undrain`: workers that are sent nothing more."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from app.local.commands.operator_client import OperatorClient, ask, path
from app.local.commands.output import JsonOption, progress, say, show_json
from app.local.errors import LocalError
from app.operations.words import count_of

POLL_SECONDS = 1.0

commands = typer.Typer()

WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Its name, as `longhaul workers` shows it.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="For the audit log and other operators.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Return once it has no responses any more.")]


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


def _line(worker: Any) -> str:
    has = worker["running"] + worker["sent"]
    what = f"has {count_of(has, 'response')}" if has else "has no responses"
    return f"{worker['name']} is {worker['state']}; it {what}"
