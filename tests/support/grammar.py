"""Checks a stream of events by a second, independent table of event types.

It does not repeat the event machine's table: it checks nesting by what is open. Every `*.added` needs its `*.done` with
the same id and indices. Sequence numbers are contiguous from 0. There is exactly one terminal event, and it is last. At
most one item is being written; items that wait for the server (hosted calls, lists of tools) are open beside it.
Source: Open Responses, "Streaming"; docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
PRELUDE = ["response.created", "response.queued", "response.in_progress"]

# part or item type -> (what its `delta` and `done` begin with, the field of `done` that has the whole text)
PARTS = {
    "refusal": ("response.refusal", "refusal"),
    "output_text": ("response.output_text", "text"),
    "reasoning_text": ("response.reasoning_text", "text"),
}
CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
    "code_interpreter_call": ("response.code_interpreter_call_code", "code"),
    "mcp_call": ("response.mcp_call_arguments", "arguments"),
}
ANNOTATION = "response.output_text.annotation.added"

# hosted item type -> (event while it runs, status -> last event before `done`); "" stands for no event
HOSTED: dict[str, tuple[str, dict[str, str]]] = {
    "code_interpreter_call": ("interpreting", {"completed": "completed", "failed": "", "incomplete": ""}),
    "web_search_call": ("searching", {"completed": "completed", "failed": "", "incomplete": ""}),
    "mcp_call": ("", {"completed": "completed", "failed": "failed", "incomplete": ""}),
    "mcp_list_tools": ("", {"completed": "completed", "failed": "failed"}),
}
WHOLE = {
    *("web_search_call", "mcp_list_tools", "mcp_approval_request", "tool_search_call", "tool_search_output"),
    *("shell_call", "apply_patch_call", "local_shell_call"),
}
"""Types of items that are complete in their `added`."""
CUT = {"shell_call": "incomplete", "local_shell_call": "incomplete", "apply_patch_call": "in_progress"}
"""The statuses of calls that are not whole."""
COMPACTING = "response.compaction.compacting"
NO_STATUS = {"mcp_list_tools", "mcp_approval_request"}


def is_repeat(event: Event, last: int) -> bool:
    """Whether this event, after number `last`, keeps a silent stream alive and is none of the log."""
    status = "queued" if last < 2 else "in_progress"
    return last >= 0 and (event["type"], event["sequence_number"]) == (f"response.{status}", last)


def without_repeats(events: Iterable[Event]) -> list[Event]:
    """Those of the log, of a stream from its first one on."""
    kept: list[Event] = []
    for event in events:
        if not kept or not is_repeat(event, kept[-1]["sequence_number"]):
            kept.append(event)
    return kept


class Violation(AssertionError):
    """The events break the grammar."""


def require(condition: object, message: str, event: Event) -> None:
    if not condition:
        raise Violation(f"{message}: {event}")


class Waiting:
    """A hosted item from its `added` to its `done`."""

    def __init__(self, item: Event) -> None:
        self.item = item
        self.kind: str = item["type"]
        self.stages: list[str] = []

    def stage(self, name: str, event: Event) -> None:
        running, ends = HOSTED[self.kind]
        allowed = {"in_progress"} if not self.stages else ({running} | set(ends.values())) - {"", *self.stages}
        require(name in allowed, f"a stage of a {self.kind} after {self.stages}", event)
        require(not set(self.stages) & set(ends.values()) - {""}, "a stage after the end", event)
        require(name in ("in_progress", running) or not running or running in self.stages, "ended before it ran", event)
        self.stages.append(name)

    def done(self, event: Event) -> None:
        item, ends = event["item"], HOSTED[self.kind][1]
        status = item.get("status") or ("completed" if item["error"] is None else "failed")
        require(status in ends, "a done item has a final status", event)
        ended = [name for name in self.stages if name in ends.values()]
        require(ended == ([ends[status]] if ends[status] else []), f"wrong events before the done: {ended}", event)
        require(
            self.kind != "mcp_call" or status != "completed" or item["error"] is None,
            "a completed call has an error",
            event,
        )


class Summary:
    """The summary of a reasoning item: one part, whose text is the reasoning's. Its events stand among the item's."""

    def __init__(self) -> None:
        self.text = ""
        self.parts: list[Event] = []
        self._last = ""

    def feed(self, kind: str, event: Event) -> None:
        step = kind.removeprefix("response.reasoning_summary_")
        after = {"": ["part.added"], "part.added": ["text.delta"], "text.delta": ["text.delta", "text.done"]}
        require(step in after.get(self._last, ["part.done"]) and not self.parts, f"a summary's {self._last}", event)
        require(event["summary_index"] == 0, "summary_index", event)
        self._last = step
        if step == "text.delta":
            require(event["delta"], "an empty delta", event)
            self.text += event["delta"]
        elif step == "text.done":
            require(event["text"] == self.text, "done is not the sum of its deltas", event)
        else:
            require(event["part"] == {"type": "summary_text", "text": self.text}, "the part differs", event)
            self.parts = [event["part"]] if step == "part.done" else []


class Checker:
    """Takes every event in order; `end()` checks that the stream is complete."""

    def __init__(self) -> None:
        self.seen = 0
        self.terminal: Event | None = None
        self.items: list[Event | None] = []
        """By output index; None: not done."""
        self.ids: set[str] = set()
        self.waiting: dict[int, Waiting] = {}
        self.item: Event | None = None
        self.part: Event | None = None
        self.summary: Summary | None = None
        """The open item's summary."""
        self.parts: list[Event] = []
        self.text = ""
        self.text_done = False
        self.failing = False
        self.annotations: list[Event] = []

    def feed(self, event: Event) -> None:
        if is_repeat(event, self.seen - 1):
            require(self.terminal is None, "an event after the terminal one", event)
            return
        require(event["sequence_number"] == self.seen, f"expected number {self.seen}", event)
        require(self.terminal is None, "an event after the terminal one", event)
        kind = event["type"]
        if self.seen < 2:
            require(kind == PRELUDE[self.seen], f"expected {PRELUDE[self.seen]}", event)
        self.seen += 1
        if kind in PRELUDE:
            status = "in_progress" if kind.endswith("in_progress") else "queued"
            require(event["response"]["status"] == status, kind, event)
            return
        if kind in TERMINAL:
            self._end(event)
        elif kind == "error":
            require(not self.failing and None not in self.items, "an error within an item", event)
            self.failing = True
        else:
            require(not self.failing, "only response.failed follows an error", event)
            self._inside(kind, event)

    def end(self) -> None:
        """Raises Violation if the stream is not complete."""
        if self.terminal is None:
            raise Violation("no terminal event")

    def _end(self, event: Event) -> None:
        require(None not in self.items, "an item is still open", event)
        status, kind = event["response"]["status"], event["type"].removeprefix("response.")
        require(self.failing == (status == "failed"), "an error and a failed response belong together", event)
        require(status == kind or (status, kind) == ("cancelled", "failed"), "status", event)
        require((kind == "failed") == (event["response"]["error"] is not None), "the error of the response", event)
        require(event["response"]["output"] == self.items, "output differs from the stream", event)
        done = [item for item in self.items if item is not None]
        cut = [index for index, item in enumerate(done) if item.get("status") == "incomplete"]
        require(
            all(done[index]["type"] in HOSTED or index == len(done) - 1 for index in cut),
            "an item that must not be cut",
            event,
        )
        if event["type"] == "response.completed":
            silent = {"reasoning", *HOSTED} - {"mcp_approval_request"}
            require(not done or any(item["type"] not in silent for item in done), "no answer", event)
            require(all(done[index]["type"] in HOSTED for index in cut), "an item that must not be cut", event)
        self.terminal = event

    def _inside(self, kind: str, event: Event) -> None:
        index = event["output_index"]
        if kind == "response.output_item.added":
            require(index == len(self.items), f"expected output_index {len(self.items)}", event)
            self._add(event)
            return
        require(0 <= index < len(self.items) and self.items[index] is None, "no such item is open", event)
        if index in self.waiting and (self.item is None or index != len(self.items) - 1):
            self._beside(kind, event, index)
            return
        require(self.item is not None and index == len(self.items) - 1, "no item is open", event)
        assert self.item is not None
        if kind == "response.output_item.done":
            self._close(event)
            return
        require(event["item_id"] == self.item["id"], "another item's id", event)
        stage = kind.removeprefix(f"response.{self.item['type']}.")
        if index in self.waiting and stage != kind:
            require(not self.text, "a stage within the text", event)
            self.waiting[index].stage(stage, event)
        elif self.item["type"] == "compaction":
            require(kind == COMPACTING, "an event of another item type", event)
        elif self.item["type"] in CALLS:
            self._text(CALLS[self.item["type"]], kind, event)
            if self.text_done and index in self.waiting:
                self.waiting[index].item = {**self.item, CALLS[self.item["type"]][1]: self.text}
                self.item = None
        elif kind.startswith("response.reasoning_summary_"):
            require(self.item["type"] == "reasoning", "a summary of something else", event)
            self.summary = self.summary or Summary()
            self.summary.feed(kind, event)
        else:
            self._in_part(kind, event)

    def _add(self, event: Event) -> None:
        item = event["item"]
        require(self.item is None, "an item is open already", event)
        require(
            item["type"] in NO_STATUS or item["status"] == "in_progress", "an added item must be in progress", event
        )
        require(item["id"] not in self.ids, "a repeated id", event)
        self.ids.add(item["id"])
        self.items.append(None)
        self.parts, self.text, self.text_done, self.summary = [], "", False, None
        if item["type"] in HOSTED:
            self.waiting[event["output_index"]] = Waiting(item)
        self.item = item if item["type"] not in WHOLE & set(HOSTED) else None

    def _beside(self, kind: str, event: Event, index: int) -> None:
        """An event of an item that waits for the server."""
        waiting = self.waiting[index]
        if kind != "response.output_item.done":
            require(event["item_id"] == waiting.item["id"], "another item's id", event)
            waiting.stage(kind.removeprefix(f"response.{waiting.kind}."), event)
            return
        item = event["item"]
        require(self.item is None, "a hosted item is done while another one is written", event)
        waiting.done(event)
        same = ("id", "type", "name", "server_label", "container_id", "code", "arguments", "approval_request_id")
        require(all(item.get(key) == waiting.item.get(key) for key in same), "another item is done", event)
        self.items[index] = item
        del self.waiting[index]

    def _in_part(self, kind: str, event: Event) -> None:
        require(event["content_index"] == len(self.parts), "content_index", event)
        if kind == "response.content_part.added":
            require(self.part is None, "a part is open already", event)
            self.part, self.text, self.text_done, self.annotations = event["part"], "", False, []
        elif kind == ANNOTATION:
            require(self.part is not None and self.part["type"] == "output_text", "no text to annotate", event)
            require(not self.text_done and event["annotation_index"] == len(self.annotations), "annotation", event)
            self.annotations.append(event["annotation"])
        elif kind == "response.content_part.done":
            require(self.part is not None and self.text_done, "the part's text is not done", event)
            field = PARTS[self.part["type"]][1]
            require(event["part"][field] == self.text, "the part differs from the stream", event)
            require(event["part"].get("annotations", []) == self.annotations, "annotations", event)
            self.parts.append(event["part"])
            self.part = None
        else:
            require(self.part is not None, "no part is open", event)
            assert self.part is not None
            self._text(PARTS[self.part["type"]], kind, event)

    def _text(self, names: tuple[str, str], kind: str, event: Event) -> None:
        beginning, field = names
        require(not self.text_done, "text after its done", event)
        require(kind in (f"{beginning}.delta", f"{beginning}.done"), "an event of another item type", event)
        if kind.endswith(".delta"):
            require(event["delta"], "an empty delta", event)
            self.text += event["delta"]
        else:
            require(event[field] == self.text, "done is not the sum of its deltas", event)
            self.text_done = True

    def _close(self, event: Event) -> None:
        item, opened = event["item"], self.item
        assert opened is not None
        if item["type"] in WHOLE:
            require(item | {"status": ""} == opened | {"status": ""}, "another item is done", event)
            cut = CUT.get(item["type"], "completed")
            require(item.get("status", "completed") in ("completed", cut), "a done item has a final status", event)
        else:
            same = ("id", "type", "call_id", "name", "namespace", "role")
            require(all(item.get(key) == opened.get(key) for key in same), "another item is done", event)
            require(item["status"] in ("completed", "incomplete"), "a done item has a final status", event)
            require(self.part is None, "a part is still open", event)
            if item["type"] == "compaction":
                whole = item["status"] == "completed"
                require(bool(item["encrypted_content"]) == whole, "a compaction is whole or empty", event)
            elif item["type"] in CALLS:
                require(self.text_done and item[CALLS[item["type"]][1]] == self.text, "arguments", event)
            else:
                require(item["content"] == self.parts and self.parts, "content", event)
            if item["type"] == "reasoning":
                written = [] if self.summary is None else self.summary.parts
                require(item["summary"] == written, "the summary differs from the stream", event)
                require(self.summary is None or self.summary.text == self.text, "not the reasoning's text", event)
        self.items[event["output_index"]] = item
        self.item = None


def check(events: list[Event]) -> None:
    """Raises Violation unless `events` are one complete, correct stream."""
    checker = Checker()
    for event in events:
        checker.feed(event)
    checker.end()
