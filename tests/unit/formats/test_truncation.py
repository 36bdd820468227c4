"""Truncation drops whole units, oldest first, and as few as possible."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.base import PromptTooLong
from workers.formats import truncation
from workers.formats.truncation import droppable_units, fit_prompt, max_prompt_tokens, without

Item = Mapping[str, Any]


def said(role: str, text: str = "") -> Item:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def call(name: str) -> Item:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def output(name: str) -> Item:
    return {"type": "function_call_output", "call_id": name, "output": "1"}


THOUGHT: Item = {"type": "reasoning", "content": [], "summary": []}


def test_system_messages_are_in_no_unit() -> None:
    items = [said("system"), said("user"), said("developer"), said("assistant"), said("user")]
    assert droppable_units(items) == [[1], [3], [4]]


def test_the_newest_user_message_is_in_no_unit_but_the_newest() -> None:
    asked = [said("user"), said("user"), call("a"), output("a")]
    assert droppable_units(asked) == [[0], [2, 3]]
    assert droppable_units([*asked, said("user")]) == [[0], [1], [2, 3], [4]]


def test_a_call_goes_with_its_output_and_its_reasoning() -> None:
    items = [said("user"), THOUGHT, call("a"), call("b"), output("a"), output("b"), said("assistant")]
    assert droppable_units([said("user"), *items]) == [[0], [2, 3, 5], [4, 6], [7]]


def test_an_output_without_its_call_is_a_unit_of_its_own() -> None:
    uncalled = {"type": "function_call_output", "name": "f", "output": "1"}
    assert droppable_units([output("a"), uncalled, said("user")]) == [[0], [1], [2]]


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


async def test_items_that_fit_are_rendered_once() -> None:
    model = Model(10)
    assert len(await fit_prompt([said("user", "12345")] * 2, model.render, truncate=True, max_tokens=ALL)) == 10
    assert model.renders == 1


async def test_disabled_truncation_drops_nothing() -> None:
    with pytest.raises(PromptTooLong):
        await fit_prompt([said("user", "12345")] * 3, Model(10).render, truncate=False, max_tokens=ALL)


async def test_the_newest_unit_and_the_system_message_are_never_dropped() -> None:
    items = [said("system", "12345"), said("user", "1"), said("user", "123456")]
    assert len(await fit_prompt(items, Model(11).render, truncate=True, max_tokens=ALL)) == 11
    with pytest.raises(PromptTooLong):
        await fit_prompt(items, Model(10).render, truncate=True, max_tokens=ALL)


async def test_dropping_begins_at_the_room_for_the_answer() -> None:
    items = [said("user", "12345")] * 3
    assert len(await fit_prompt(items, Model(100).render, truncate=True, max_tokens=14)) == 10
    assert len(await fit_prompt(items, Model(100).render, truncate=True, max_tokens=15)) == 15
    assert len(await fit_prompt(items, Model(100).render, truncate=False, max_tokens=1)) == 15


async def test_the_newest_unit_may_take_from_the_room_for_the_answer() -> None:
    assert len(await fit_prompt([said("user", "12345")] * 3, Model(6).render, truncate=True, max_tokens=3)) == 5


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


async def test_the_items_of_each_prompt_are_chosen_in_a_thread_if_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = set[int]()

    def noted(*args: Any) -> list[Item]:
        threads.add(threading.get_ident())
        return without(*args)

    monkeypatch.setattr(truncation, "without", noted)
    with pytest.raises(PromptTooLong):
        await fit_prompt([said("user", "x")] * 2_000, Model(0).render, truncate=True, max_tokens=ALL)
    assert threads and threading.get_ident() not in threads
