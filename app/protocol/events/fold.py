"""Events back into a response: what a reader knows after these events.

This is written apart from the machine (machine.py), so that tests can compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.protocol.events.frames import Event
from app.protocol.hosted_kinds import HOSTED_KINDS
from app.protocol.item_types import APPROVAL_REQUEST, MCP_LIST_TOOLS, TOOL_SEARCH_CALL
from app.protocol.types import Json


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The response object after some events, and the number of the next event."""

    response: Json
    next_sequence: int
    unfinished: tuple[int, ...] = ()
    """Indexes of items that were added and are not done."""
    open: int | None = None
    """Index of the unfinished item whose text the model still writes."""


Folder = Callable[[list[Json], Event], None]


def _set_item(output: list[Json], event: Event) -> None:
    index = event["output_index"]
    output[index : index + 1] = [event["item"]]


def _set_part(output: list[Json], event: Event) -> None:
    content = output[event["output_index"]]["content"]
    content[event["content_index"] :] = [event["part"]]


def _add_text(output: list[Json], event: Event) -> None:
    part = output[event["output_index"]]["content"][event["content_index"]]
    part["text"] += event["delta"]
    if event.get("logprobs"):
        part["logprobs"] = [*part["logprobs"], *event["logprobs"]]


def _set_summary(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["summary"][event["summary_index"] :] = [event["part"]]


def _add_to_summary(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["summary"][event["summary_index"]]["text"] += event["delta"]


def _add_refusal(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["content"][event["content_index"]]["refusal"] += event["delta"]


def _add_annotation(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["content"][event["content_index"]]["annotations"].append(event["annotation"])


def _add_to(field: str) -> Folder:
    def fold_text(output: list[Json], event: Event) -> None:
        output[event["output_index"]][field] += event["delta"]

    return fold_text


def _set_status(status: str) -> Folder:
    def fold_status(output: list[Json], event: Event) -> None:
        output[event["output_index"]]["status"] = status

    return fold_status


_FOLDERS: dict[str, Folder] = {
    "response.output_item.added": _set_item,
    "response.output_item.done": _set_item,
    "response.content_part.added": _set_part,
    "response.content_part.done": _set_part,
    "response.output_text.delta": _add_text,
    "response.reasoning_text.delta": _add_text,
    "response.reasoning_summary_part.added": _set_summary,
    "response.reasoning_summary_part.done": _set_summary,
    "response.reasoning_summary_text.delta": _add_to_summary,
    "response.output_text.annotation.added": _add_annotation,
    "response.refusal.delta": _add_refusal,
    "response.function_call_arguments.delta": _add_to("arguments"),
    "response.custom_tool_call_input.delta": _add_to("input"),
}

for _kind in HOSTED_KINDS:
    if _kind.text_field is not None:
        _FOLDERS[f"response.{_kind.call_type}_{_kind.text_field}.delta"] = _add_to(_kind.text_field)
    if _kind.running_status is not None:
        _FOLDERS[f"response.{_kind.call_type}.{_kind.running_status}"] = _set_status(_kind.running_status)

_WHOLE = {kind.call_type for kind in HOSTED_KINDS if kind.text_field is None} | {
    APPROVAL_REQUEST,
    MCP_LIST_TOOLS,
    TOOL_SEARCH_CALL,
}
"""Types of items to which the model adds nothing after the event that adds them."""

_CLOSING = {f"response.{kind.call_type}_{kind.text_field}.done" for kind in HOSTED_KINDS if kind.text_field is not None}
"""Events after which the model adds nothing to an item, though it is not done."""


class _Unfinished:
    """Which items are not done, and which of them is open."""

    def __init__(self) -> None:
        self.indexes: dict[int, None] = {}
        self.open: int | None = None

    def note(self, event: Event) -> None:
        event_type, index = event["type"], event.get("output_index")
        if index is None:
            return
        if event_type == "response.output_item.added":
            self.indexes[index] = None
            self.open = None if event["item"]["type"] in _WHOLE else index
        elif event_type == "response.output_item.done":
            self.indexes.pop(index, None)
            self.open = None if self.open == index else self.open
        elif event_type in _CLOSING:
            self.open = None


def fold(events: Iterable[Event]) -> Snapshot:
    """Returns the response after `events`, the first of which is `response.created`. The result owns the events."""
    response: Json = {}
    output: list[Json] = []
    unfinished = _Unfinished()
    next_sequence = 0
    for event in events:
        next_sequence = event["sequence_number"] + 1
        unfinished.note(event)
        if "response" in event:
            response = event["response"]
            output = response["output"] or output
        elif (folder := _FOLDERS.get(event["type"])) is not None:
            folder(output, event)
    return Snapshot({**response, "output": output}, next_sequence, tuple(unfinished.indexes), unfinished.open)
