"""The options that say which responses a command is about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

StatusOption = Annotated[list[str] | None, typer.Option("--status", help="Of this status; may be repeated.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Of this model.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="Of the project with this id or name.")]
KeyOption = Annotated[str | None, typer.Option("--key", help="Created by the API key with this id.")]
RequestOption = Annotated[str | None, typer.Option("--request-id", help="Of requests with this x-request-id.")]
TierOption = Annotated[str | None, typer.Option("--tier", help="Of this service tier: default, flex or priority.")]
CodeOption = Annotated[str | None, typer.Option("--error-code", help="Failed with this code.")]
MetadataOption = Annotated[
    list[str] | None, typer.Option("--metadata", help="KEY=VALUE in its metadata; may be repeated.")
]
AfterOption = Annotated[
    str | None,
    typer.Option("--created-after", help="Created at this time or later: 2026-11-27T14:00 (UTC), or 2h ago."),
]
BeforeOption = Annotated[str | None, typer.Option("--created-before", help="Created before this time.")]


@dataclass(frozen=True, slots=True)
class Filter:
    """What a command was told of responses."""

    status: list[str] | None = None
    model: str | None = None
    project: str | None = None
    key: str | None = None
    request_id: str | None = None
    tier: str | None = None
    error_code: str | None = None
    metadata: list[str] | None = None
    created_after: str | None = None
    created_before: str | None = None
    ids: list[str] | None = None

    @property
    def names_ids(self) -> bool:
        """Whether it names each response that it is about."""
        return bool(self.ids)

    def body(self) -> dict[str, Any]:
        """As the body of an action has it."""
        said = {
            "ids": self.ids,
            "status": self.status,
            "model": self.model,
            "project": self.project,
            "key": self.key,
            "request_id": self.request_id,
            "service_tier": self.tier,
            "error_code": self.error_code,
            "metadata": _pairs(self.metadata),
            "created_after": _seconds("--created-after", self.created_after),
            "created_before": _seconds("--created-before", self.created_before),
        }
        return {name: value for name, value in said.items() if value}

    def query(self) -> dict[str, Any]:
        """As the query of a list has it."""
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
