"""Whose reasoning is shown again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from app.protocol.types import Json
from tests.support.requests import message, reasoning, stored_request
from workers.engine.base import Engine, InvalidSampling, Message
from workers.formats.chat.turn import template_args_of
from workers.formats.reasoning import check_template, without_left_out

OLD, NEW = reasoning("old"), reasoning("new")
ITEMS = [message("a"), OLD, message("b", "assistant"), message("c"), NEW]


def asking(context: str | None) -> Json:
    return stored_request(reasoning={"effort": None, "summary": None, "context": context})


@pytest.mark.parametrize("context", [None, "auto", "all_turns"])
def test_the_format_gets_all_reasoning(context: str | None) -> None:
    assert without_left_out(ITEMS, asking(context)) == ITEMS
    assert without_left_out(ITEMS, stored_request()) == ITEMS


def test_the_current_turn_begins_after_the_last_user_message() -> None:
    assert without_left_out(ITEMS, asking("current_turn")) == [item for item in ITEMS if item is not OLD]
    assert without_left_out([OLD, NEW], asking("current_turn")) == [OLD, NEW]


def test_all_turns_tells_the_template_unless_the_request_says_otherwise() -> None:
    request = asking("all_turns")
    assert template_args_of(request, {}) == {"preserve_thinking": True, "clear_thinking": False}
    own = {**request, "extra": {"chat_template_kwargs": {"clear_thinking": True}}}
    assert template_args_of(own, {})["clear_thinking"] is True
    assert template_args_of(asking("current_turn"), {}) == {}


class Renderer:
    """An engine whose template shows the reasoning of earlier turns, always or if it is told to."""

    def __init__(self, needs: str | None) -> None:
        self._needs = needs

    async def render(
        self, messages: Sequence[Message], args: Mapping[str, Any], tools: Sequence[Json]
    ) -> tuple[int, ...]:
        shows = self._needs is None or args.get(self._needs)
        texts = (each["content"] + (each.get("reasoning") or "" if shows else "") for each in messages)
        return tuple("".join(texts).encode())


@pytest.mark.parametrize("needs", [None, "preserve_thinking"])
async def test_a_template_that_can_show_earlier_reasoning_passes(needs: str | None) -> None:
    await check_template(cast(Engine, Renderer(needs)), template_args_of(asking("all_turns"), {}))


async def test_a_template_that_cannot_show_it_is_refused_by_the_fields_name() -> None:
    with pytest.raises(InvalidSampling, match=r"reasoning\.context: 'all_turns' is not possible"):
        await check_template(cast(Engine, Renderer("other")), template_args_of(asking("all_turns"), {}))
