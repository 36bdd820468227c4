"""Items -> a prompt that fits: `truncation: auto` drops whole oldest items, `disabled` none.

What is dropped goes in units, oldest first: a message, or a call with its output and the reasoning that led to it.
System and developer messages stay, and so does the newest unit. How many units must go is found by halving: fewer
never make a longer prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from workers.engine.base import PromptTooLong

Json = Mapping[str, Any]
Render = Callable[[Sequence[Json]], Awaitable[tuple[int, ...]]]

_STAYS = ("system", "developer")
_CALLS = ("function_call", "custom_tool_call")


async def fitted(items: Sequence[Json], render: Render, *, truncate: bool) -> tuple[int, ...]:
    """The prompt of as many of the newest items as fit. Raises PromptTooLong where they do not, and EngineError."""
    try:
        return await render(items)
    except PromptTooLong:
        units = units_of(items) if truncate else []
        if len(units) < 2:
            raise
    fewest, most = 1, len(units) - 1
    found = await render(without(items, units[:most]))
    while fewest < most:
        middle = (fewest + most) // 2
        try:
            found = await render(without(items, units[:middle]))
            most = middle
        except PromptTooLong:
            fewest = middle + 1
    return found


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
