"""What a template makes of each effort is found by rendering it, and requests and cards go by that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from jinja2 import Environment

from workers.engine.template_efforts import EFFORTS, applied_efforts


def refuse(reason: str) -> str:
    raise ValueError(reason)


SHOW = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
SWITCH = SHOW + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
EFFORT = "Effort: {{ reasoning_effort or 'medium' }}." + SHOW
TWO = "{% if reasoning_effort in ('high', 'xhigh', 'max') %}Think hard.{% endif %}" + SWITCH
STRICT = (
    "{% if reasoning_effort and reasoning_effort not in ('low', 'high') %}{{ refuse('effort') }}{% endif %}" + EFFORT
)
WITH_TOOLS = SHOW + "{% if tools and reasoning_effort %}Effort: {{ reasoning_effort }}.{% endif %}"
EARLIER = "{% for m in messages %}<{{ m.role }}>{% if thinking %}{{ m.reasoning_content }}{% endif %}{% endfor %}"
BROKEN = "{{ refuse('no messages at all') }}"

OFF = ("none", "minimal")
ON = tuple(effort for effort in EFFORTS if effort not in OFF)
ITSELF = {effort: effort for effort in EFFORTS}


def efforts_of(template: str) -> dict[str, str | None] | None:
    compiled = Environment().from_string(template, globals={"refuse": refuse})

    def shown(messages: Sequence[Mapping[str, Any]], args: Mapping[str, Any], tools: Sequence[Any]) -> str:
        return compiled.render(messages=messages, tools=tools or None, **args)

    return applied_efforts(shown)


@pytest.mark.parametrize(
    ("template", "efforts"),
    [
        (SHOW, dict.fromkeys(EFFORTS)),
        (SWITCH, {**dict.fromkeys(OFF, "none"), **dict.fromkeys(ON, "medium")}),
        (EFFORT, ITSELF),
        (TWO, {**dict.fromkeys(OFF, "none"), "low": "medium", "medium": "medium", **dict.fromkeys(ON[2:], "high")}),
        (STRICT, {"low": "low", "high": "high"}),
        (WITH_TOOLS, ITSELF),
        (EARLIER, {**dict.fromkeys(OFF, "none"), **dict.fromkeys(ON, "medium")}),
        (BROKEN, None),
    ],
)
def test_efforts_that_make_one_prompt_are_one_effort(template: str, efforts: dict[str, str | None] | None) -> None:
    assert efforts_of(template) == efforts
