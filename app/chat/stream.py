"""The chat chunks that the events of a response become: a table of functions by the event's type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from app.chat.completion import BETWEEN_ITEMS, CALLS, call, finish_reason, head, logprobs, usage
from app.protocol.events import frames
from app.protocol.events.frames import Event
from app.protocol.failures import error_of
from app.protocol.types import Json
from app.translation.names import Names


class ChatStream:
    """The chat chunks of one stream. Events come in their order, and each of them once."""

    def __init__(self, names: Names, *, include_usage: bool, include_reasoning: bool = True) -> None:
        self._names = names
        self._include_usage = include_usage
        self._include_reasoning = include_reasoning
        self._head: Json = {}
        self._calls: dict[int, int] = {}
        """The index among the calls of each item that is one, by its place in the output."""
        self._said: dict[str, int] = {}
        """The item that the last delta of each kind of text came from."""

    def frames(self, encoded: bytes) -> list[bytes]:
        """Returns the frames of the chat chunks that these events, as frames, become."""
        made: list[bytes] = []
        for frame in frames.split(encoded):
            kind, _, data = frame.removeprefix(b"event: ").partition(b"\ndata: ")
            if (write := _WRITERS.get(kind)) is not None:  # Other events repeat what deltas said: they are not parsed.
                made += map(frames.encode_data, write(self, orjson.loads(data)))
        return made

    def _begin(self, event: Event) -> Iterable[Json]:
        self._head = head(event["response"], "chat.completion.chunk")
        return ()

    def _role(self, _: Event) -> Iterable[Json]:
        return (self._chunk({"role": "assistant", "content": ""}),)

    def _text(self, event: Event) -> Iterable[Json]:
        return (self._chunk({"content": self._piece("content", event)}, logprobs(event["logprobs"])),)

    def _refusal(self, event: Event) -> Iterable[Json]:
        return (self._chunk({"refusal": self._piece("refusal", event)}),)

    def _reasoning(self, event: Event) -> Iterable[Json]:
        if not self._include_reasoning:
            return ()
        return (self._chunk({"reasoning_content": self._piece("reasoning_content", event)}),)

    def _piece(self, field: str, event: Event) -> str:
        last, index = self._said.get(field), event["output_index"]
        self._said[field] = index
        text: str = event["delta"]
        return text if last in (None, index) else BETWEEN_ITEMS + text

    def _item(self, event: Event) -> Iterable[Json]:
        item = event["item"]
        if item["type"] not in CALLS:
            return ()
        number = self._calls[event["output_index"]] = len(self._calls)
        return (self._chunk({"tool_calls": [{"index": number, **call(item)}]}),)

    def _arguments(self, event: Event) -> Iterable[Json]:
        return self._more(event, "function", "arguments")

    def _input(self, event: Event) -> Iterable[Json]:
        return self._more(event, "custom", "input")

    def _more(self, event: Event, kind: str, field: str) -> Iterable[Json]:
        piece = {"index": self._calls[event["output_index"]], kind: {field: event["delta"]}}
        return (self._chunk({"tool_calls": [piece]}),)

    def _end(self, event: Event) -> Iterable[Json]:
        response = event["response"]
        yield self._chunk({}, reason=finish_reason(response))
        if self._include_usage:
            yield {**self._head, "choices": [], "usage": usage(response["usage"])}

    def _fail(self, event: Event) -> Iterable[Json]:
        return (self._names.error(error_of(event["response"]).error).body(),)

    def _chunk(self, delta: Json, tokens: Json | None = None, reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": tokens, "finish_reason": reason}
        return {**self._head, "choices": [choice], **({"usage": None} if self._include_usage else {})}


_WRITERS: Mapping[bytes, Callable[[ChatStream, Any], Iterable[Json]]] = {
    b"response.created": ChatStream._begin,
    b"response.in_progress": ChatStream._role,
    b"response.output_item.added": ChatStream._item,
    b"response.output_text.delta": ChatStream._text,
    b"response.refusal.delta": ChatStream._refusal,
    b"response.reasoning_text.delta": ChatStream._reasoning,
    b"response.function_call_arguments.delta": ChatStream._arguments,
    b"response.custom_tool_call_input.delta": ChatStream._input,
    b"response.completed": ChatStream._end,
    b"response.incomplete": ChatStream._end,
    b"response.failed": ChatStream._fail,
}
"""Events that are not listed have no form in chat."""
