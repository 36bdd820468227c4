"""Items to a prompt that fits: `truncation: auto` drops the oldest items, `disabled` drops none.

Items are dropped in units, oldest first. A unit is a message, or a call with its output and the reasoning that led to
it. System and developer messages stay, and so do the newest unit and the newest user message: it is what the model
works on, and many templates insist on one. Dropping leaves room for an answer, so it begins
before the context is full.

Dropping fewer units never makes a shorter prompt. If all are too many, the search keeps 1 unit, then 2, 4, 8, until
they do not fit, and bisects between the last two. So its prompts are about as long as the context, and not as the
input, which may be a thousand times longer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from app.heavy import off_loop
from app.protocol.item_types import CLIENT_CALLS
from app.sizes import item_count
from workers.engine.base import PromptTooLong

Item = Mapping[str, Any]
Render = Callable[[Sequence[Item]], Awaitable[tuple[int, ...]]]

_KEPT_ROLES = ("system", "developer")


async def fit_prompt(items: Sequence[Item], render: Render, *, truncate: bool, max_tokens: int) -> tuple[int, ...]:
    """The prompt of these items; with `truncate`, of as many of the newest items as fit into `max_tokens`.

    The newest unit may take more, as long as the engine accepts it. Raises PromptTooLong and EngineError.
    """
    units = await off_loop(partial(droppable_units, items), items=item_count(items)) if truncate else []
    if len(units) < 2:
        return await render(items)
    found = await _render_within(render, items, max_tokens)
    if found is not None:
        return found

    async def with_newest(kept: int) -> Sequence[Item]:
        return await off_loop(partial(without, items, units[: len(units) - kept]), items=item_count(items))

    async def newest(kept: int) -> tuple[int, ...] | None:
        return await _render_within(render, await with_newest(kept), max_tokens)

    fits, too_many = 0, 1
    while too_many < len(units) and (shorter := await newest(too_many)) is not None:
        found, fits, too_many = shorter, too_many, too_many * 2
    too_many = min(too_many, len(units))
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if (shorter := await newest(middle)) is None:
            too_many = middle
        else:
            found, fits = shorter, middle
    return found if found is not None else await render(await with_newest(1))


async def _render_within(render: Render, items: Sequence[Item], max_tokens: int) -> tuple[int, ...] | None:
    try:
        prompt = await render(items)
    except PromptTooLong:
        return None
    return prompt if len(prompt) <= max_tokens else None


def max_prompt_tokens(max_output_tokens: int | None, context_length: int) -> int:
    """The context less the room for the answer: its maximum, but at most a quarter of the context."""
    quarter = context_length // 4
    return context_length - (quarter if max_output_tokens is None else min(max_output_tokens, quarter))


def without(items: Sequence[Item], units: Sequence[Sequence[int]]) -> list[Item]:
    """The items that are in none of these units."""
    dropped = {index for unit in units for index in unit}
    return [item for index, item in enumerate(items) if index not in dropped]


def _call_of(item: Item) -> str:
    """The id that a call and its output share. Those of a search on the server have none, and follow each other."""
    return item.get("call_id") or item.get("execution") or ""


def droppable_units(items: Sequence[Item]) -> list[list[int]]:
    """The indexes of the items that may be dropped, unit by unit, oldest first."""
    units: list[list[int]] = []
    calls: dict[str, list[int]] = {}
    reasoning: list[int] = []
    asked = max((index for index, item in enumerate(items) if item.get("role") == "user"), default=-1)
    for index, item in enumerate(items):
        if item["type"] == "reasoning":
            reasoning.append(index)
        elif item["type"].endswith("_output") and _call_of(item) in calls:
            calls[_call_of(item)].append(index)
        elif item.get("role") not in _KEPT_ROLES:
            units.append([*reasoning, index])
            reasoning = []
            if item["type"] in CLIENT_CALLS:
                calls[_call_of(item)] = units[-1]
    if reasoning:
        units.append(reasoning)
    return [unit for unit in units if asked not in unit or unit is units[-1]]
