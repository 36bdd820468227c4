"""Where a response stands in line, by the order in which dispatches send (order.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.scheduling.order import MAX_CHARGE, Flow, Tagged, WaitingFlow


@dataclass(frozen=True, slots=True)
class LinedFlow:
    """A flow of which some wait."""

    waiting: WaitingFlow
    """Its responses are the first of those that wait: at least one."""
    count: int
    """How many wait."""
    in_files: int = 0
    """Lines of batches that come behind them: they are no responses yet."""


@dataclass(frozen=True, slots=True)
class Place:
    """How many a dispatch would send before a response now. What comes, and flows that end, move it later."""

    ahead: Mapping[Flow, int]
    """Of each flow that has any, lines in files included."""
    is_exact: bool
    """Otherwise the costs of those behind a flow's first ones were taken for equal."""
    in_files: int = 0
    """So many of them are lines of batches that are no responses yet."""

    @property
    def number(self) -> int:
        return sum(self.ahead.values())


def place_of(
    position: int, flow: Flow, before: tuple[int, int], flows: Sequence[LinedFlow], virtual_time: float
) -> Place:
    """The place of the response of `flow`, one of these `flows`, with this `position`.

    `before`: how many stand before it in its flow, and how many lines in files will. A foreground response stands in
    the line of the foreground alone: that goes to places of its own.
    """
    own = next(each for each in flows if each.waiting.flow == flow)
    tags = list(own.waiting.tagged(virtual_time))
    _, in_files = before
    found = None if in_files else next((each.order for each in tags if each.position == position), None)
    order = found or (tags[0].order[0], _beyond(tags, sum(before)), True, position)
    ahead, is_exact = {flow: sum(before)}, found is not None
    for each in flows:
        if each is own or (flow.is_foreground and not each.waiting.flow.is_foreground):
            continue
        number, is_known = _before(order, each, virtual_time)
        ahead[each.waiting.flow], is_exact = number, is_exact and is_known
        in_files += max(number - each.count, 0)
    return Place({each: number for each, number in ahead.items() if number}, is_exact, in_files)


def _before(order: tuple[bool, float, bool, int], flow: LinedFlow, virtual_time: float) -> tuple[int, bool]:
    """How many of a flow have a smaller order, and whether that is exact."""
    tags, count = list(flow.waiting.tagged(virtual_time)), flow.count + flow.in_files
    number = sum(each.order < order for each in tags)
    if number < len(tags) or count <= len(tags):
        return number, True
    if order[0] and not tags[0].order[0]:  # It waits until nothing else does.
        return count, True
    more = int((order[1] - tags[-1].finish) / _mean_move(tags)) + 1
    return min(len(tags) + max(more, 0), count), False


def _beyond(tags: Sequence[Tagged], before: int) -> float:
    """The start of the response behind so many of its flow."""
    return tags[-1].finish + (before - len(tags)) * _mean_move(tags)


def _mean_move(tags: Sequence[Tagged]) -> float:
    """How far one response of the flow moves its tag."""
    charge = min(sum(each.charge for each in tags) / len(tags), MAX_CHARGE)
    return max(charge, 1.0) * tags[0].step
