"""Items -> a prompt that fits: `truncation: auto` drops whole oldest items, `disabled` none.

What is dropped goes in units, oldest first: a message, or a call with its output and the reasoning that led to it.
System and developer messages stay, and so does the newest unit. How many units must go is found by halving: fewer
never make a longer prompt. An answer needs room as well, so dropping begins before the context is full.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from workers.engine.base import PromptTooLong

Json = Mapping[str, Any]
Render = Callable[[Sequence[Json]], Awaitable[tuple[int, ...]]]

_STAYS = ("system", "developer")
_CALLS = ("function_call", "custom_tool_call")


async def fit_prompt(items: Sequence[Json], render: Render, *, truncate: bool, most: int) -> tuple[int, ...]:
    """The prompt of these items or, with `truncate`, of as many of the newest as make `most` tokens.

    The newest unit may have more, as long as it fits at all. Raises PromptTooLong, and EngineError.
    """
    units = units_of(items) if truncate else []
    if len(units) < 2:
        return await render(items)
    found = await _within(render, items, most)
    if found is not None:
        return found
    fewest, dropped = 1, len(units) - 1
    while fewest < dropped:
        middle = (fewest + dropped) // 2
        shorter = await _within(render, without(items, units[:middle]), most)
        if shorter is None:
            fewest = middle + 1
        else:
            found, dropped = shorter, middle
    return found if found is not None else await render(without(items, units[:dropped]))


async def _within(render: Render, items: Sequence[Json], most: int) -> tuple[int, ...] | None:
    try:
        prompt = await render(items)
    except PromptTooLong:
        return None
    return prompt if len(prompt) <= most else None


def reserved_for_answer(max_output_tokens: int | None, context_length: int) -> int:
    """Tokens that truncation leaves for the answer: what it may have, and a quarter of the context at most."""
    quarter = context_length // 4
    return quarter if max_output_tokens is None else min(max_output_tokens, quarter)


def without(items: Sequence[Json], units: Sequence[Sequence[int]]) -> list[Json]:
    """The items but for those of these units."""
    gone = {place for unit in units for place in unit}
    return [item for place, item in enumerate(items) if place not in gone]


def units_of(items: Sequence[Json]) -> list[list[int]]:
    """The places of the items that may be dropped, in the units in which they are, oldest first."""
    units: list[list[int]] = []
    calls: dict[str, list[int]] = {}
    thoughts: list[int] = []
    for place, item in enumerate(items):
        if item["type"] == "reasoning":
            thoughts.append(place)
        elif item["type"].endswith("_output") and item["call_id"] in calls:
            calls[item["call_id"]].append(place)
        elif item.get("role") not in _STAYS:
            units.append([*thoughts, place])
            thoughts = []
            if item["type"] in _CALLS:
                calls[item["call_id"]] = units[-1]
    return [*units, thoughts] if thoughts else units
