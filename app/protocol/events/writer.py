"""What the actions write to: the response so far, and the numbered events of one input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.protocol.events.frames import Event
from app.protocol.types import Json


class IllegalInput(Exception):
    """The machine's state does not allow this input: a bug of the caller."""


class Writer:
    """One response and its events. `response` is its response object before any output."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self.response: Json = {**response, "output": []}
        self.output: list[Json] = self.response["output"]
        self.next_sequence = 0
        self.pieces: list[str] = []
        """The text of the open part or call so far; it is joined when the part or call is closed."""
        self.logprobs: list[Json] = []
        self.pending: list[int] = []
        """Indexes of items that are closed but wait for the server: calls for a result, lists for an answer."""
        self.events: list[Event] = []
        """The events of the current input."""
        self.cut = False
        """Whether the current input ends the response in the middle of the open item."""
        self.seal: Callable[[str], str] | None = None
        """Makes the `encrypted_content` of reasoning items; None: they have none."""

    @property
    def summarizes(self) -> bool:
        """Whether the request asked for a summary of the reasoning."""
        return bool((self.response["reasoning"] or {}).get("summary"))

    # -- events ----------------------------------------------------------------------------------------------

    def emit(self, event_type: str, **fields: Any) -> None:
        self.events.append({"type": event_type, "sequence_number": self.next_sequence, **fields})
        self.next_sequence += 1

    def emit_response(self, name: str) -> None:
        """A lifecycle event. It holds a copy, because an event must not change later."""
        snapshot = {**self.response, "output": list(self.output)}
        self.emit(f"response.{name}", response=snapshot)

    def emit_item(self, event_type: str, index: int | None = None, **fields: Any) -> None:
        """An event about the item at `index`; None: about the last item."""
        index = self.last_index if index is None else index
        self.emit(event_type, item_id=self.output[index]["id"], output_index=index, **fields)

    def emit_part(self, event_type: str, **fields: Any) -> None:
        """An event about the last part of the last item."""
        self.emit_item(event_type, content_index=len(self.item["content"]) - 1, **fields)

    # -- items -----------------------------------------------------------------------------------------------

    @property
    def last_index(self) -> int:
        return len(self.output) - 1

    @property
    def item(self) -> Json:
        """The last item: the open one, if any is open."""
        return self.output[-1]

    def new_id(self, prefix: str) -> str:
        """An id for the next item: the same deltas always give the same ids."""
        return f"{prefix}_{self.id_suffix}_{len(self.output)}"

    @property
    def id_suffix(self) -> str:
        """The response's id without its prefix."""
        suffix: str = self.response["id"].split("_", 1)[-1]
        return suffix

    def add_item(self, prefix: str, **fields: Any) -> None:
        """Adds an item with the status `in_progress`; `prefix` is that of its id."""
        self.add_item_without_status(prefix, **fields, status="in_progress")

    def add_item_without_status(self, prefix: str, **fields: Any) -> None:
        item = {"id": self.new_id(prefix), **fields}
        self.output.append(item)
        self.pieces = []
        self.emit("response.output_item.added", output_index=self.last_index, item=copied(item))

    def end_item(self, index: int) -> None:
        self.emit("response.output_item.done", output_index=index, item=copied(self.output[index]))

    def add_piece(self, text: str, event_type: str) -> None:
        """Adds characters to the open call."""
        self.pieces.append(text)
        self.emit_item(event_type, delta=text)

    def join_pieces(self, field: str) -> str:
        """Sets the open call's `field` to its whole text, and returns the text."""
        self.item[field] = text = "".join(self.pieces)
        return text

    # -- parts -----------------------------------------------------------------------------------------------

    @property
    def part(self) -> Json:
        """The last part of the last item."""
        part: Json = self.item["content"][-1]
        return part

    def add_part(self, part: Json) -> None:
        self.item["content"].append(part)
        self.pieces = []
        self.emit_part("response.content_part.added", part=copied(part))

    def finish_part(self, event_type: str, field: str, **fields: Any) -> None:
        """Sets the part's `field` to its whole text; makes an event with the text, and one with the part."""
        self.part[field] = "".join(self.pieces)
        self.emit_part(event_type, **{field: self.part[field]}, **fields)
        self.emit_part("response.content_part.done", part=copied(self.part))


def copied(value: Any) -> Any:
    """A copy of an item or part for an event, in which later changes do not show."""
    if isinstance(value, dict):
        return {key: copied(item) if isinstance(item, list) else item for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value
