"""Agents send efforts to every model: one that a model does not take becomes the nearest one that it takes."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.requests.bodies.text_config import nearest_effort
from app.protocol.requests.capabilities import Capabilities, check_capabilities

ABLE: dict[str, Any] = {"images": False, "tools": True, "reasoning": True, "verbosity": False}
SWITCH = {"none": "none", "high": None}
"""A template that can only switch thoughts off."""


@pytest.mark.parametrize(
    ("model", "asked", "nearest"),
    [
        ({"harmony": True}, "high", "high"),
        ({"harmony": True}, "max", "high"),
        ({"harmony": True}, "none", "low"),
        ({"harmony": True}, None, None),
        ({"efforts": SWITCH}, "none", "none"),
        ({"efforts": SWITCH}, "low", "none"),
        ({"efforts": SWITCH}, "xhigh", "high"),
        ({"efforts": {"low": "low"}}, "none", "low"),
        ({"efforts": {}}, "high", None),
        ({"efforts": None}, "max", "max"),
        ({"reasoning": False}, "high", None),
        ({"reasoning": False}, "none", None),
    ],
)
def test_the_nearest_effort(model: dict[str, Any], asked: str | None, nearest: str | None) -> None:
    can = Capabilities(**{**ABLE, **model})
    found = nearest_effort({"effort": asked, "summary": None}, can)
    assert found == {"effort": nearest, "summary": None}
    document = {"input": [], "tools": [], "tool_choice": "auto", "text": {}, "include": [], "extra": {}}
    check_capabilities({**document, "model": "m", "top_logprobs": 0, "reasoning": found}, can)


def test_a_request_without_an_effort_asks_for_none() -> None:
    assert nearest_effort(None, Capabilities(**ABLE)) is None
