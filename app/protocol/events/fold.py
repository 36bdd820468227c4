"""Events back into a response: what a reader who saw them all knows.

Written apart from the machine in `stream.py`, so that each can be tested by the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.protocol.events.frames import Event
from app.protocol.types import Json


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The response object after some events, and the number of the event that comes next."""

    response: Json
    next_sequence: int
    unfinished: tuple[int, ...] = ()
    """The places in the output of items that were added and are not done."""
    open: int | None = None
    """The one of them whose text the model is still writing."""


def _take_item(output: list[Json], event: Event) -> None:
    index = event["output_index"]
    output[index : index + 1] = [event["item"]]


def _take_part(output: list[Json], event: Event) -> None:
    content = output[event["output_index"]]["content"]
    content[event["content_index"] :] = [event["part"]]


def _add_text(output: list[Json], event: Event) -> None:
    part = output[event["output_index"]]["content"][event["content_index"]]
    part["text"] += event["delta"]
    if event.get("logprobs"):
        part["logprobs"] = [*part["logprobs"], *event["logprobs"]]


def _add_refusal(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["content"][event["content_index"]]["refusal"] += event["delta"]


def _add_annotation(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["content"][event["content_index"]]["annotations"].append(event["annotation"])


def _add_arguments(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["arguments"] += event["delta"]


def _add_input(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["input"] += event["delta"]


def _add_code(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["code"] += event["delta"]


def _interpreting(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["status"] = "interpreting"


def _searching(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["status"] = "searching"


_FOLDERS: dict[str, Callable[[list[Json], Event], None]] = {
    "response.output_item.added": _take_item,
    "response.output_item.done": _take_item,
    "response.content_part.added": _take_part,
    "response.content_part.done": _take_part,
    "response.output_text.delta": _add_text,
    "response.reasoning_text.delta": _add_text,
    "response.output_text.annotation.added": _add_annotation,
    "response.refusal.delta": _add_refusal,
    "response.function_call_arguments.delta": _add_arguments,
    "response.custom_tool_call_input.delta": _add_input,
    "response.code_interpreter_call_code.delta": _add_code,
    "response.code_interpreter_call.interpreting": _interpreting,
    "response.mcp_call_arguments.delta": _add_arguments,
    "response.web_search_call.searching": _searching,
}

_WHOLE = frozenset({"web_search_call", "mcp_approval_request", "mcp_list_tools"})
"""Types of items that are added with all that the model says of them."""

_WRITTEN = frozenset({"response.code_interpreter_call_code.done", "response.mcp_call_arguments.done"})
"""After these the model writes no more of an item that is not done yet."""


class _Unfinished:
    """Which items are not done, and which of them is open."""

    def __init__(self) -> None:
        self.places: dict[int, None] = {}
        self.open: int | None = None

    def take(self, event: Event) -> None:
        kind, index = event["type"], event.get("output_index")
        if index is None:
            return
        if kind == "response.output_item.added":
            self.places[index] = None
            self.open = None if event["item"]["type"] in _WHOLE else index
        elif kind == "response.output_item.done":
            self.places.pop(index, None)
            self.open = None if self.open == index else self.open
        elif kind in _WRITTEN:
            self.open = None


def fold(events: Iterable[Event]) -> Snapshot:
    """The response after `events`, the first of which is `response.created`. Takes the events over."""
    response: Json = {}
    output: list[Json] = []
    unfinished = _Unfinished()
    following = 0
    for event in events:
        following = event["sequence_number"] + 1
        unfinished.take(event)
        if "response" in event:
            response = event["response"]
            output = response["output"] or output
        elif (folder := _FOLDERS.get(event["type"])) is not None:
            folder(output, event)
    return Snapshot({**response, "output": output}, following, tuple(unfinished.places), unfinished.open)
