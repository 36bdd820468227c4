"""What `longhaul responses` refuses before it asks anybody."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer
from typer.testing import CliRunner

from app.local.commands.operator_client import path
from app.local.commands.responses import commands
from app.local.commands.responses.filters import Filter
from config.settings import ConfigError


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["cancel", "--reason", "x"], "--all"),
        (["retry", "--reason", "x"], "--all"),
        (["cancel", "--model", "m"], "--reason"),
        (["cancel", "--all"], "--reason"),
        (["cancel", "--metadata", "run", "--reason", "x"], "KEY=VALUE"),
        (["list", "--created-after", "yesterday"], "yesterday"),
    ],
)
def test_what_is_unclear_is_refused(arguments: list[str], word: str) -> None:
    ran = CliRunner().invoke(commands, arguments)
    assert ran.exit_code == 2
    assert word in ran.output


def test_a_filter_is_said_to_actions_and_to_lists() -> None:
    only = Filter(status=["queued"], model="m", metadata=["run=a=b"], created_after="2026-11-27T14:00", ids=["resp_1"])
    at = int(datetime(2026, 11, 27, 14, tzinfo=UTC).timestamp())
    body = {"ids": ["resp_1"], "status": ["queued"], "model": "m", "metadata": {"run": "a=b"}, "created_after": at}
    assert only.body() == body
    assert only.query() == {**{name: body[name] for name in body if name != "metadata"}, "metadata[run]": "a=b"}


def test_an_option_that_is_empty_is_said_too_for_the_api_to_refuse_it() -> None:
    """As of a shell's variable that is not set: without it the others would match more than was meant."""
    only = Filter(ids=[], status=[], metadata=[], project="acme", model="", created_before="1970-01-01")
    assert only.body() == {"project": "acme", "model": "", "created_before": 0}


def test_an_age_counts_from_now() -> None:
    (seconds,) = Filter(created_before="2h").body().values()
    assert abs(datetime.now(UTC).timestamp() - 7200 - seconds) < 60


def test_a_time_may_have_a_zone() -> None:
    (seconds,) = Filter(created_before="2026-11-27T14:00+02:00").body().values()
    assert seconds == datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp()


def test_pairs_without_a_key_are_refused() -> None:
    with pytest.raises(typer.BadParameter):
        Filter(metadata=["=x"]).body()


def test_an_id_asks_no_other_route_whatever_is_in_it() -> None:
    assert path("responses", "../projects?x=1#", "why") == "responses/..%2Fprojects%3Fx%3D1%23/why"
    assert path("workers", "qwen3-8b-1f@gpu-7", "drain") == "workers/qwen3-8b-1f@gpu-7/drain"
    with pytest.raises(ConfigError, match="empty"):
        path("responses", "", "why")
