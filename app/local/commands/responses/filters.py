"""The filter of responses that a command's options describe."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Filter:
    """The options that say which responses a command is about."""

    ids: Annotated[list[str] | None, typer.Argument(help="Ids of responses, in place of a filter or besides it.")] = (
        None
    )
    status: Annotated[list[str] | None, typer.Option(help="Of this status; may be repeated.")] = None
    model: Annotated[str | None, typer.Option(help="Of this model.")] = None
    project: Annotated[str | None, typer.Option(help="Of the project with this id or name.")] = None
    key: Annotated[str | None, typer.Option(help="Created by the API key with this id.")] = None
    batch: Annotated[str | None, typer.Option(help="Lines of the batch with this id.")] = None
    request_id: Annotated[str | None, typer.Option(help="Of requests with this x-request-id.")] = None
    tier: Annotated[str | None, typer.Option(help="Of this service tier: default, flex or priority.")] = None
    error_code: Annotated[str | None, typer.Option(help="Failed with this code.")] = None
    metadata: Annotated[list[str] | None, typer.Option(help="KEY=VALUE in its metadata; may be repeated.")] = None
    created_after: Annotated[
        str | None,
        typer.Option(help="Created at this time or later: 2026-11-27T14:00 (UTC); or 10m for 10 minutes ago, 2h, 3d."),
    ] = None
    created_before: Annotated[str | None, typer.Option(help="Created before this time.")] = None

    def body(self) -> dict[str, Any]:
        """As the body of an action has it. An option that is empty, as `--model "$UNSET"`, is sent, and refused."""
        said = {
            "ids": self.ids,
            "status": self.status,
            "model": self.model,
            "project": self.project,
            "key": self.key,
            "batch": self.batch,
            "request_id": self.request_id,
            "service_tier": self.tier,
            "error_code": self.error_code,
            "metadata": _pairs(self.metadata),
            "created_after": _seconds("--created-after", self.created_after),
            "created_before": _seconds("--created-before", self.created_before),
        }
        return {name: value for name, value in said.items() if value not in (None, [], {})}

    def query(self) -> dict[str, Any]:
        """The filter as the query of a list."""
        said = self.body()
        pairs = said.pop("metadata", {})
        return {**said, **{f"metadata[{key}]": value for key, value in pairs.items()}}


def _pairs(sent: list[str] | None) -> dict[str, str]:
    pairs = {}
    for each in sent or ():
        key, sign, value = each.partition("=")
        if not key or not sign:
            raise typer.BadParameter(f"--metadata: '{each}' is not KEY=VALUE")
        pairs[key] = value
    return pairs


def _seconds(option: str, sent: str | None) -> int | None:
    """Epoch seconds of a time, or of one that is so long ago."""
    if sent is None:
        return None
    number, unit = sent[:-1], sent[-1:]
    if number.isdecimal() and number.isascii() and unit in _UNITS:
        return int((datetime.now(UTC) - timedelta(seconds=int(number) * _UNITS[unit])).timestamp())
    try:
        moment = datetime.fromisoformat(sent)
    except ValueError:
        raise typer.BadParameter(
            f"{option}: '{sent}' is neither a time like 2026-11-27T14:00 nor an age like 2h"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
