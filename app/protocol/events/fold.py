"""Events back into a response: what a reader knows after these events.

This is written apart from the machine (machine.py), so that tests can compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.protocol.events.frames import Event
from app.protocol.hosted_kinds import HOSTED_KINDS
from app.protocol.item_types import APPROVAL_REQUEST, MCP_LIST_TOOLS, TOOL_SEARCH_CALL, TOOL_SEARCH_OUTPUT
from app.protocol.local_kinds import LOCAL_CALLS
from app.protocol.types import Json


@dataclass(frozen=True, slots=True)
class FoldedResponse:
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


def _set_summary(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["summary"][event["summary_index"] :] = [event["part"]]


def _add_annotation(output: list[Json], event: Event) -> None:
    output[event["output_index"]]["content"][event["content_index"]]["annotations"].append(event["annotation"])


def _set_status(status: str) -> Folder:
    def fold_status(output: list[Json], event: Event) -> None:
        output[event["output_index"]]["status"] = status

    return fold_status


_FOLDERS: dict[str, Folder] = {
    "response.output_item.added": _set_item,
    "response.output_item.done": _set_item,
    "response.content_part.added": _set_part,
    "response.content_part.done": _set_part,
    "response.reasoning_summary_part.added": _set_summary,
    "response.reasoning_summary_part.done": _set_summary,
    "response.output_text.annotation.added": _add_annotation,
}


def _item(output: list[Json], event: Event) -> Json:
    item: Json = output[event["output_index"]]
    return item


def _part(output: list[Json], event: Event) -> Json:
    part: Json = _item(output, event)["content"][event["content_index"]]
    return part


def _summary_part(output: list[Json], event: Event) -> Json:
    part: Json = _item(output, event)["summary"][event["summary_index"]]
    return part


_TEXTS: dict[str, tuple[Callable[[list[Json], Event], Json], str]] = {
    "response.output_text.delta": (_part, "text"),
    "response.reasoning_text.delta": (_part, "text"),
    "response.reasoning_summary_text.delta": (_summary_part, "text"),
    "response.refusal.delta": (_part, "refusal"),
    "response.function_call_arguments.delta": (_item, "arguments"),
    "response.custom_tool_call_input.delta": (_item, "input"),
}
"""Where the deltas of each type add to: the part or item, and its field."""

for _kind in HOSTED_KINDS:
    if _kind.text_field is not None:
        _TEXTS[f"response.{_kind.call_type}_{_kind.text_field}.delta"] = (_item, _kind.text_field)
    if _kind.running_status is not None:
        _FOLDERS[f"response.{_kind.call_type}.{_kind.running_status}"] = _set_status(_kind.running_status)

_WHOLE = {kind.call_type for kind in HOSTED_KINDS if kind.text_field is None} | {
    APPROVAL_REQUEST,
    MCP_LIST_TOOLS,
    TOOL_SEARCH_CALL,
    TOOL_SEARCH_OUTPUT,
    *LOCAL_CALLS,
}
"""Types of items to which the model adds nothing after the event that adds them."""

_CLOSING = {f"response.{kind.call_type}_{kind.text_field}.done" for kind in HOSTED_KINDS if kind.text_field is not None}
"""Events after which the model adds nothing to an item, though it is not done."""


class _Unfinished:
    """The items that are not done, and the one of them that is open."""

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


class _OpenText:
    """The text that deltas add to now. Its owner gets it at the end: each `+=` would copy a long text once more."""

    def __init__(self) -> None:
        self._owner: Json | None = None
        self._field = ""
        self._pieces: list[str] = []
        self._logprobs: list[Json] = []

    def add(self, owner: Json, field: str, event: Event) -> None:
        if owner is not self._owner:
            self.close()
            self._owner, self._field = owner, field
        self._pieces.append(event["delta"])
        self._logprobs += event.get("logprobs") or ()

    def close(self) -> None:
        if self._owner is not None:
            self._owner[self._field] += "".join(self._pieces)
        if self._owner is not None and self._logprobs:
            self._owner["logprobs"] = [*self._owner["logprobs"], *self._logprobs]
        self._owner, self._pieces, self._logprobs = None, [], []


def fold(events: Iterable[Event]) -> FoldedResponse:
    """Returns the response after `events`, the first of which is `response.created`. The result owns the events."""
    response: Json = {}
    output: list[Json] = []
    unfinished, text = _Unfinished(), _OpenText()
    next_sequence = 0
    for event in events:
        next_sequence = event["sequence_number"] + 1
        unfinished.note(event)
        if "response" in event:
            response = event["response"]
            output = response["output"] or output
        elif (found := _TEXTS.get(event["type"])) is not None:
            find, field = found
            text.add(find(output, event), field, event)
        elif (folder := _FOLDERS.get(event["type"])) is not None:
            folder(output, event)
    text.close()
    return FoldedResponse({**response, "output": output}, next_sequence, tuple(unfinished.indexes), unfinished.open)
