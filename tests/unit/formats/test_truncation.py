"""Truncation drops whole units, oldest first, and as few as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.requests import call, output, reasoning
from workers.engine.base import PromptTooLong
from workers.formats.truncation import droppable_units, fit_prompt, max_prompt_tokens, without

Item = Mapping[str, Any]


def said(role: str, text: str = "") -> Item:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


THOUGHT: Item = reasoning()


USER, ANSWER = said("user"), said("assistant")
ASKED = [USER, USER, call(call_id="a"), output(call_id="a")]
UNITS: list[tuple[list[Item], list[list[int]]]] = [
    # System messages are in none.
    ([said("system"), USER, said("developer"), ANSWER, USER], [[1], [3], [4]]),
    # The newest user message is in none but the newest.
    (ASKED, [[0], [2, 3]]),
    ([*ASKED, USER], [[0], [1], [2, 3], [4]]),
    # A call goes with its output and its reasoning.
    (
        [USER, USER, THOUGHT, call(call_id="a"), call(call_id="b"), output(call_id="a"), output(call_id="b"), ANSWER],
        [[0], [2, 3, 5], [4, 6], [7]],
    ),
    # An output without its call is one of its own.
    ([output(call_id="a"), {"type": "function_call_output", "name": "f", "output": "1"}, USER], [[0], [1], [2]]),
]


def test_whole_units_are_dropped_and_no_system_or_newest_user_message() -> None:
    for items, units in UNITS:
        assert droppable_units(items) == units


def test_remaining_items_keep_their_order() -> None:
    items = [said("system"), said("user", "a"), said("assistant", "b"), said("user", "c")]
    assert without(items, droppable_units(items)[:1]) == [items[0], items[2], items[3]]


ALL = 10**6


class Model:
    """Renders a prompt as long as the texts."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.renders = 0

    async def render(self, items: Sequence[Item]) -> tuple[int, ...]:
        self.renders += 1
        length = sum(len(item["content"][0]["text"]) for item in items)
        if length > self.limit:
            raise PromptTooLong(length, self.limit)
        return tuple(range(length))


@pytest.mark.parametrize(
    ("count", "limit", "truncate", "max_tokens", "kept"),
    [
        (2, 10, True, ALL, 10),
        (3, 10, False, ALL, None),
        # Dropping begins at the room for the answer, from which the newest unit may take.
        (3, 100, True, 14, 10),
        (3, 100, True, 15, 15),
        (3, 100, False, 1, 15),
        (3, 6, True, 3, 5),
    ],
)
async def test_what_fits_is_kept_and_rendered_once(
    count: int, limit: int, truncate: bool, max_tokens: int, kept: int | None
) -> None:
    model, items = Model(limit), [said("user", "12345")] * count
    if kept is None:
        with pytest.raises(PromptTooLong):
            await fit_prompt(items, model.render, truncate=truncate, max_tokens=max_tokens)
    else:
        assert len(await fit_prompt(items, model.render, truncate=truncate, max_tokens=max_tokens)) == kept
    assert model.renders == 1 or (truncate and kept != 5 * count)


async def test_the_newest_unit_and_the_system_message_are_never_dropped() -> None:
    items = [said("system", "12345"), said("user", "1"), said("user", "123456")]
    assert len(await fit_prompt(items, Model(11).render, truncate=True, max_tokens=ALL)) == 11
    with pytest.raises(PromptTooLong):
        await fit_prompt(items, Model(10).render, truncate=True, max_tokens=ALL)


def test_the_room_for_the_answer_is_its_maximum_but_at_most_a_quarter() -> None:
    assert [max_prompt_tokens(asked, 400) for asked in (None, 10, 1000)] == [300, 390, 300]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(30, 200))
async def test_as_little_as_possible_is_dropped(lengths: list[int], limit: int) -> None:
    model = Model(limit)
    prompt = await fit_prompt(
        [said("user", "x" * length) for length in lengths], model.render, truncate=True, max_tokens=ALL
    )
    expected = next(sum(lengths[n:]) for n in range(len(lengths)) if sum(lengths[n:]) <= limit)
    assert len(prompt) == expected
    assert model.renders <= 14


async def test_a_search_renders_little_more_than_what_fits() -> None:
    rendered: list[int] = []

    async def render(items: Sequence[Item]) -> tuple[int, ...]:
        rendered.append(len(items))
        if len(items) > 100:
            raise PromptTooLong(len(items), 100)
        return tuple(range(len(items)))

    items = [said("user", "x")] * 45_000
    assert len(await fit_prompt(items, render, truncate=True, max_tokens=100)) == 100
    assert rendered.count(45_000) == 1
    assert max(length for length in rendered if length != 45_000) < 200
