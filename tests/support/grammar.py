"""What a stream of events must look like: a second, independent table, over event types alone.

Not the machine's table written again: this one checks nesting with a stack of what is open. Every
`*.added` needs its `*.done` with the same id and indices, numbers are contiguous from 0, there is exactly one
terminal event, and it is last. Source: Open Responses, "Streaming"; facts collected in docs/protocol.md.
"""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

TERMINAL = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
PRELUDE = ["response.created", "response.queued", "response.in_progress"]

# part type -> (delta event, done event, the field that `done` carries the whole of)
PARTS = {
    "refusal": ("response.refusal.delta", "response.refusal.done", "refusal"),
    "output_text": ("response.output_text.delta", "response.output_text.done", "text"),
    "reasoning_text": ("response.reasoning_text.delta", "response.reasoning_text.done", "text"),
}
CALLS = {
    "function_call": (
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "arguments",
    ),
    "custom_tool_call": (
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "input",
    ),
}
ANNOTATION = "response.output_text.annotation.added"


class Violation(AssertionError):
    """The events break the grammar."""


def need(condition: object, why: str, event: Event) -> None:
    if not condition:
        raise Violation(f"{why}: {event}")


class Checker:
    """Feed it every event in order; `end()` says whether the stream may stop there."""

    def __init__(self) -> None:
        self.seen = 0
        self.terminal: Event | None = None
        self.items: list[Event] = []
        self.item: Event | None = None
        self.part: Event | None = None
        self.parts: list[Event] = []
        self.text = ""
        self.text_done = False
        self.failing = False
        self.annotations: list[Event] = []

    def feed(self, event: Event) -> None:
        need(event["sequence_number"] == self.seen, f"number {self.seen} was due", event)
        need(self.terminal is None, "an event after the terminal one", event)
        kind = event["type"]
        if self.seen < 2:
            need(kind == PRELUDE[self.seen], f"{PRELUDE[self.seen]} was due", event)
        self.seen += 1
        if kind in PRELUDE:
            status = "in_progress" if kind.endswith("in_progress") else "queued"
            need(event["response"]["status"] == status, kind, event)
            return
        if kind in TERMINAL:
            self._end(event)
        elif kind == "error":
            need(not self.failing and self.item is None, "error in the middle of an item", event)
            self.failing = True
        else:
            need(not self.failing, "only response.failed follows an error", event)
            self._inside(kind, event)

    def end(self) -> None:
        """Raises Violation where the stream is not whole."""
        if self.terminal is None:
            raise Violation("no terminal event")

    def _end(self, event: Event) -> None:
        need(self.item is None, "an item is still open", event)
        need(self.failing == (event["type"] == "response.failed"), "error and failed go together", event)
        need(event["response"]["status"] == event["type"].removeprefix("response."), "status", event)
        need(event["response"]["output"] == self.items, "output is not what was streamed", event)
        cut = [item for item in self.items if item["status"] == "incomplete"]
        need(not cut or (cut == self.items[-1:] and event["type"] != "response.completed"), "cut item", event)
        self.terminal = event

    def _inside(self, kind: str, event: Event) -> None:
        index = len(self.items)
        need(event["output_index"] == index, f"output_index {index} was due", event)
        if kind == "response.output_item.added":
            need(self.item is None, "an item is open already", event)
            need(event["item"]["status"] == "in_progress", "an added item is in progress", event)
            need(all(item["id"] != event["item"]["id"] for item in self.items), "an id twice", event)
            self.item, self.parts, self.text, self.text_done = event["item"], [], "", False
            return
        need(self.item is not None, "no item is open", event)
        assert self.item is not None
        if kind == "response.output_item.done":
            self._close(event)
            return
        need(event["item_id"] == self.item["id"], "another item's id", event)
        if self.item["type"] in CALLS:
            self._text(CALLS[self.item["type"]], kind, event)
        else:
            self._in_part(kind, event)

    def _in_part(self, kind: str, event: Event) -> None:
        need(event["content_index"] == len(self.parts), "content_index", event)
        if kind == "response.content_part.added":
            need(self.part is None, "a part is open already", event)
            self.part, self.text, self.text_done, self.annotations = event["part"], "", False, []
        elif kind == ANNOTATION:
            need(self.part is not None and self.part["type"] == "output_text", "no text to annotate", event)
            need(not self.text_done and event["annotation_index"] == len(self.annotations), "annotation", event)
            self.annotations.append(event["annotation"])
        elif kind == "response.content_part.done":
            need(self.part is not None and self.text_done, "the part's text is not done", event)
            field = PARTS[self.part["type"]][2]
            need(event["part"][field] == self.text, "the part is not what was streamed", event)
            need(event["part"].get("annotations", []) == self.annotations, "annotations", event)
            self.parts.append(event["part"])
            self.part = None
        else:
            need(self.part is not None, "no part is open", event)
            assert self.part is not None
            self._text(PARTS[self.part["type"]], kind, event)

    def _text(self, names: tuple[str, str, str], kind: str, event: Event) -> None:
        delta, done, field = names
        need(not self.text_done, "text after its done", event)
        need(kind in (delta, done), "an event of another kind of item", event)
        if kind == delta:
            need(event["delta"], "an empty delta", event)
            self.text += event["delta"]
        else:
            need(event[field] == self.text, "done is not the sum of its deltas", event)
            self.text_done = True

    def _close(self, event: Event) -> None:
        item, opened = event["item"], self.item
        assert opened is not None
        same = ("id", "type", "call_id", "name", "role")
        need(all(item.get(key) == opened.get(key) for key in same), "another item is done", event)
        need(item["status"] in ("completed", "incomplete"), "a done item is done", event)
        need(self.part is None, "a part is still open", event)
        if item["type"] in CALLS:
            need(self.text_done and item[CALLS[item["type"]][2]] == self.text, "arguments", event)
        else:
            need(item["content"] == self.parts and self.parts, "content", event)
        self.items.append(item)
        self.item = None


def check(events: list[Event]) -> None:
    """Raises Violation where `events` are not one whole, correct stream."""
    checker = Checker()
    for event in events:
        checker.feed(event)
    checker.end()
