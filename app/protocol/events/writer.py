"""What the steps of the event state machine write: the response so far, and numbered events about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.protocol.events.frames import Event
from app.protocol.types import Json


class IllegalInput(Exception):
    """An input that the machine's state does not allow: a bug of the caller."""


class Writer:
    """One response and the events of one input. `response` is its response object with no output."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self.response: Json = {**response, "output": []}
        self.output: list[Json] = self.response["output"]
        self.following = 0
        """The number of the next event."""
        self.pieces: list[str] = []
        """The open part's or call's text so far; joined when it is closed."""
        self.logprobs: list[Json] = []
        self.pending: list[int] = []
        """Items that wait for something outside the model, by their places: closed, and not done."""
        self.events: list[Event] = []
        self.cut = False
        """Whether the input at hand ends the response in the middle of what is open."""
        self.seal: Callable[[str], str] | None = None

    # -- events ----------------------------------------------------------------------------------------------

    def emit(self, kind: str, **fields: Any) -> None:
        self.events.append({"type": kind, "sequence_number": self.following, **fields})
        self.following += 1

    def emit_response(self, name: str) -> None:
        """A lifecycle event; its snapshot must not change when the machine goes on."""
        snapshot = {**self.response, "output": list(self.output)}
        self.emit(f"response.{name}", response=snapshot)

    def emit_item(self, kind: str, index: int | None = None, **fields: Any) -> None:
        """An event about the item at `index`; None: about the last one."""
        place = self.last if index is None else index
        self.emit(kind, item_id=self.output[place]["id"], output_index=place, **fields)

    def emit_part(self, kind: str, **fields: Any) -> None:
        self.emit_item(kind, content_index=len(self.item["content"]) - 1, **fields)

    # -- items -----------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        return len(self.output) - 1

    @property
    def item(self) -> Json:
        return self.output[-1]

    def name(self, prefix: str) -> str:
        """An id for the item that comes next: the same whenever these deltas are played again."""
        return f"{prefix}_{self.suffix}_{len(self.output)}"

    @property
    def suffix(self) -> str:
        """The response's id without its prefix."""
        suffix: str = self.response["id"].split("_", 1)[-1]
        return suffix

    def add_item(self, prefix: str, **fields: Any) -> None:
        """An item in progress."""
        self.add_plain(prefix, **fields, status="in_progress")

    def add_plain(self, prefix: str, **fields: Any) -> None:
        """An item of a type that has no status."""
        item = {"id": self.name(prefix), **fields}
        self.output.append(item)
        self.pieces = []
        self.emit("response.output_item.added", output_index=self.last, item=copied(item))

    def end_item(self, index: int) -> None:
        self.emit("response.output_item.done", output_index=index, item=copied(self.output[index]))

    def add_piece(self, text: str, kind: str) -> None:
        """Characters of the open call."""
        self.pieces.append(text)
        self.emit_item(kind, delta=text)

    def join(self, field: str) -> str:
        """The open call's whole text, which becomes its `field`."""
        self.item[field] = text = "".join(self.pieces)
        return text

    # -- parts -----------------------------------------------------------------------------------------------

    @property
    def part(self) -> Json:
        part: Json = self.item["content"][-1]
        return part

    def add_part(self, part: Json) -> None:
        self.item["content"].append(part)
        self.pieces = []
        self.emit_part("response.content_part.added", part=copied(part))

    def done_part(self, kind: str, field: str, **fields: Any) -> None:
        """Two events: the part's whole text, then the part."""
        self.part[field] = "".join(self.pieces)
        self.emit_part(kind, **{field: self.part[field]}, **fields)
        self.emit_part("response.content_part.done", part=copied(self.part))


def copied(value: Any) -> Any:
    """An item or part as an event shows it: later changes must not show there."""
    if isinstance(value, dict):
        return {key: copied(item) if isinstance(item, list) else item for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value
