"""The events of a streamed message that the events of a response become: a table of functions by the event's type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from app.messages.answer import CALL, AnswerShape, citation, ending, head, thinking, tool_use, usage
from app.messages.errors import error_body
from app.messages.hosted import blocks_of
from app.protocol.events import frames
from app.protocol.events.frames import Event
from app.protocol.failures import error_of
from app.protocol.item_types import REASONING
from app.protocol.types import Json
from app.translation.names import Names

PING = frames.encode({"type": "ping"})

_NOTHING = {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}
_EMPTY = {"stop_reason": None, "stop_sequence": None}


class MessageStream:
    """The events of one streamed message. Those of the response come in their order, and each of them once."""

    def __init__(self, names: Names, shape: AnswerShape, request_id: str | None = None) -> None:
        self._names = names
        self._shape = shape
        self._request_id = request_id
        self._index = -1
        """Index of the last block."""
        self._is_open = False
        self._text = ""
        """Text of the open text block, if it is looked at again."""
        self._held: str | None = None
        """A stop sequence at the end of the text so far: it is text if more comes."""

    def frames(self, encoded: bytes) -> list[bytes]:
        """Returns the frames of the events that these events, as frames, become."""
        made: list[bytes] = []
        for frame in frames.split(encoded):
            kind, _, data = frame.removeprefix(b"event: ").partition(b"\ndata: ")
            if (write := _WRITERS.get(kind)) is not None:  # Other events repeat what deltas said: they are not parsed.
                made += map(frames.encode, write(self, orjson.loads(data)))
        return made

    def _begin(self, event: Event) -> Iterable[Json]:
        started = {**head(event["response"]), "content": [], **_EMPTY, "usage": _NOTHING}
        yield {"type": "message_start", "message": started}

    def _say(self, event: Event) -> Iterable[Json]:
        """A delta of a text, or of a refusal."""
        text: str = (self._held or "") + event["delta"]
        self._held = self._shape.stopped_by(text)
        if self._held is not None:
            text = text[: -len(self._held)]
        yield from self._write(text)

    def _write(self, text: str) -> Iterable[Json]:
        if not text:
            return
        if not self._is_open:
            yield self._start({"type": "text", "text": "", "citations": None})
        self._text += text
        yield self._delta({"type": "text_delta", "text": text})

    def _cite(self, event: Event) -> Iterable[Json]:
        if self._is_open and (cited := citation(event["annotation"], self._text)) is not None:
            yield self._delta({"type": "citations_delta", "citation": cited})

    def _end_part(self, event: Event) -> Iterable[Json]:
        """A part of a message ends; that of a reasoning item ends with its item, which has the seal."""
        if event["part"]["type"] != "reasoning_text" and self._held is None:
            yield from self._stop()

    def _think(self, event: Event) -> Iterable[Json]:
        if self._shape.shows_thoughts and not self._shape.omits_thoughts:
            yield from self._start_thinking()
            yield self._delta({"type": "thinking_delta", "thinking": event["delta"]})

    def _start_thinking(self) -> Iterable[Json]:
        if not self._is_open:
            yield self._start({"type": "thinking", "thinking": "", "signature": ""})

    def _add_item(self, event: Event) -> Iterable[Json]:
        if self._held is not None:  # What follows is no text, so the stop sequence did not end the answer.
            held, self._held = self._held, None
            yield from self._write(held)
            yield from self._stop()
        if event["item"]["type"] == CALL:
            yield self._start({**tool_use(event["item"]), "input": {}})

    def _add_input(self, event: Event) -> Iterable[Json]:
        yield self._delta({"type": "input_json_delta", "partial_json": event["delta"]})

    def _end_item(self, event: Event) -> Iterable[Json]:
        item = event["item"]
        if item["type"] == CALL:
            yield from self._stop()
        elif item["type"] == REASONING and self._shape.shows_thoughts:
            yield from self._start_thinking()
            yield self._delta({"type": "signature_delta", "signature": thinking(item, self._shape)["signature"]})
            yield from self._stop()
        for block in blocks_of(item):
            if (asked := block.get("input")) is None:
                yield self._start(block)
            else:
                yield self._start({**block, "input": {}})
                yield self._delta({"type": "input_json_delta", "partial_json": orjson.dumps(asked).decode()})
            yield from self._stop()

    def _end(self, event: Event) -> Iterable[Json]:
        response = event["response"]
        yield from self._stop()
        yield {"type": "message_delta", "delta": ending(response, self._held), "usage": usage(response)}
        yield {"type": "message_stop"}

    def _fail(self, event: Event) -> Iterable[Json]:
        error = error_of(event["response"])
        error.error = self._names.error(error.error)
        yield error_body(error, self._request_id)

    def _start(self, block: Json) -> Json:
        self._index, self._is_open, self._text = self._index + 1, True, ""
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self) -> Iterable[Json]:
        if self._is_open:
            self._is_open = False
            yield {"type": "content_block_stop", "index": self._index}


_WRITERS: Mapping[bytes, Callable[[MessageStream, Any], Iterable[Json]]] = {
    b"response.created": MessageStream._begin,
    b"response.output_item.added": MessageStream._add_item,
    b"response.output_item.done": MessageStream._end_item,
    b"response.output_text.delta": MessageStream._say,
    b"response.output_text.annotation.added": MessageStream._cite,
    b"response.refusal.delta": MessageStream._say,
    b"response.reasoning_text.delta": MessageStream._think,
    b"response.content_part.done": MessageStream._end_part,
    b"response.function_call_arguments.delta": MessageStream._add_input,
    b"response.completed": MessageStream._end,
    b"response.incomplete": MessageStream._end,
    b"response.failed": MessageStream._fail,
}
"""Events that are not listed have no form in Messages."""
