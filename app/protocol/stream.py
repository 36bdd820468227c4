"""The event state machine: what a model says in, numbered events out.

Theory. `states.TABLE` is the machine; an illegal input raises and changes nothing. Steps write events; each event
gets the next sequence number at the one place where events are made. The machine has no clock, no ids of its own
and no I/O: ids come from the response's id and the item's index, so that the same deltas always give the same
events, and `restore(events)` puts a machine where another one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.protocol.deltas import (
    Annotation,
    CallArguments,
    CallStart,
    CustomInput,
    CustomStart,
    Delta,
    Finish,
    FinishReason,
    Reasoning,
    Refusal,
    Text,
)
from app.protocol.frames import Event
from app.protocol.response import usage_object
from app.protocol.snapshot import fold
from app.protocol.states import INPUT_OF, TABLE, Input, State
from app.protocol.status import Status

Json = dict[str, Any]


class IllegalInput(Exception):
    """An input that the machine's state does not allow: a bug of the caller."""


class ResponseStream:
    """One response's events. `response` is its response object with no output, as it was created."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self._response: Json = {**response, "output": []}
        self._output: list[Json] = self._response["output"]
        self._state = State.NEW
        self._next = 0
        self._pieces: list[str] = []
        """The open part's or call's text so far; joined when it is closed."""
        self._logprobs: list[Json] = []
        self._events: list[Event] = []
        self._current: Any = None
        self.seal: Callable[[str], str] | None = None
        """Makes the `encrypted_content` of reasoning items that end, from their text; None: they have none."""

    @classmethod
    def restore(cls, events: Iterable[Event]) -> ResponseStream:
        """A machine that goes on after `events`, which begin with `response.created`."""
        snapshot = fold(events)
        stream = cls({**snapshot.response, "usage": None})
        stream._output[:] = snapshot.response["output"]
        stream._next = snapshot.next_sequence
        status = Status(snapshot.response["status"])
        if status is Status.QUEUED:
            stream._state = State.QUEUED
        elif status.final:
            stream._state = State.ENDED
        else:
            stream._state = stream._reopen()
        return stream

    @property
    def next_sequence(self) -> int:
        """The number of the next event."""
        return self._next

    @property
    def state(self) -> State:
        return self._state

    @property
    def response(self) -> Json:
        """The response object as it stands; the terminal event carried just this once the machine has ended."""
        return self._response

    def open(self) -> list[Event]:
        """The events of a response that was accepted."""
        return self._process(Input.OPEN, None)

    def begin(self) -> list[Event]:
        """The event of a response that a worker started."""
        return self._process(Input.BEGIN, None)

    def feed(self, delta: Delta) -> list[Event]:
        """The events of what the model said."""
        return self._process(INPUT_OF[type(delta)], delta)

    def finish(self, finish: Finish, finished_at: int) -> list[Event]:
        """The model is done: `response.completed`, or `response.incomplete` where it was cut."""
        return self._process(Input.FINISH, (finish, finished_at))

    def fail(self, error: Json) -> list[Event]:
        """It went wrong: a flat `error` event, then `response.failed`."""
        return self._process(Input.FAIL, error)

    def cancel(self) -> list[Event]:
        """`response.cancelled`, with the output so far."""
        return self._process(Input.CANCEL, None)

    def _process(self, event: Input, argument: Any) -> list[Event]:
        """The one door: legality first, then the steps."""
        cell = TABLE[self._state].get(event)
        if cell is None:
            raise IllegalInput(f"{event.value!r} is not allowed in state {self._state.value!r}")
        steps, following = cell
        self._current = (event, argument)
        self._events = []
        for step in steps:
            _STEPS[step](self, argument)
        self._state = following
        return self._events

    # -- making events -------------------------------------------------------------------------------------

    def _emit(self, kind: str, **fields: Any) -> None:
        self._events.append({"type": kind, "sequence_number": self._next, **fields})
        self._next += 1

    def _emit_response(self, name: str) -> None:
        """A lifecycle event; its snapshot must not change when the machine goes on."""
        snapshot = {**self._response, "output": list(self._output)}
        self._emit(f"response.{name}", response=snapshot)

    def _emit_item(self, kind: str, **fields: Any) -> None:
        self._emit(kind, item_id=self._item["id"], output_index=self._index, **fields)

    @property
    def _index(self) -> int:
        return len(self._output) - 1

    @property
    def _item(self) -> Json:
        return self._output[-1]

    def _add_item(self, prefix: str, **fields: Any) -> None:
        item = {"id": self._name(prefix), **fields, "status": "in_progress"}
        self._output.append(item)
        self._pieces = []
        self._emit("response.output_item.added", output_index=self._index, item=_copy(item))

    def _name(self, prefix: str) -> str:
        """An id for the item that comes next: the same whenever these deltas are played again."""
        return f"{prefix}_{self._response['id'].split('_', 1)[-1]}_{len(self._output)}"

    def _add_part(self, part: Json) -> None:
        self._item["content"].append(part)
        self._pieces = []
        self._emit_part("response.content_part.added", part=_copy(part))

    @property
    def _part(self) -> Json:
        part: Json = self._item["content"][-1]
        return part

    def _emit_part(self, kind: str, **fields: Any) -> None:
        self._emit_item(kind, content_index=len(self._item["content"]) - 1, **fields)

    def _done_part(self, kind: str, field: str, **fields: Any) -> None:
        """Two events: the part's whole text, then the part."""
        self._part[field] = "".join(self._pieces)
        self._emit_part(kind, **{field: self._part[field]}, **fields)
        self._emit_part("response.content_part.done", part=_copy(self._part))

    # -- steps: lifecycle ----------------------------------------------------------------------------------

    def _created(self, _: Any) -> None:
        self._emit_response("created")

    def _queued(self, _: Any) -> None:
        self._emit_response("queued")

    def _in_progress(self, _: Any) -> None:
        self._response["status"] = Status.IN_PROGRESS.value
        self._emit_response("in_progress")

    def _finish(self, argument: tuple[Finish, int]) -> None:
        finish, finished_at = argument
        status = Status.COMPLETED
        if finish.reason is FinishReason.LENGTH:
            status = Status.INCOMPLETE
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self._response["completed_at"] = finished_at
        self._response |= {"status": status.value, "usage": usage_object(finish.usage)}
        self._emit_response(status.value)

    def _fail(self, error: Json) -> None:
        self._response |= {"status": Status.FAILED.value, "error": error}
        self._emit("error", code=error["code"], message=error["message"], param=None)
        self._emit_response("failed")

    def _cancel(self, _: Any) -> None:
        self._response["status"] = Status.CANCELLED.value
        self._emit_response("cancelled")

    # -- steps: items --------------------------------------------------------------------------------------

    def _open_message(self, _: Any) -> None:
        self._add_item("msg", type="message", role="assistant", content=[])

    def _open_text(self, _: Any) -> None:
        self._logprobs = []
        self._add_part({"type": "output_text", "text": "", "annotations": [], "logprobs": []})

    def _open_refusal(self, _: Any) -> None:
        self._add_part({"type": "refusal", "refusal": ""})

    def _open_reasoning(self, _: Any) -> None:
        self._add_item("rs", type="reasoning", summary=[], content=[], encrypted_content=None)
        self._add_part({"type": "reasoning_text", "text": ""})

    def _open_call(self, delta: CallStart) -> None:
        self._add_item("fc", type="function_call", call_id=self._name("call"), name=delta.name, arguments="")

    def _open_custom(self, delta: CustomStart) -> None:
        self._add_item("ctc", type="custom_tool_call", call_id=self._name("call"), name=delta.name, input="")

    def _text(self, delta: Text) -> None:
        self._pieces.append(delta.text)
        self._logprobs += delta.logprobs
        self._emit_part("response.output_text.delta", delta=delta.text, logprobs=list(delta.logprobs))

    def _annotation(self, delta: Annotation) -> None:
        annotations = self._part["annotations"]
        annotations.append(delta.annotation)
        self._emit_part(
            "response.output_text.annotation.added",
            annotation_index=len(annotations) - 1,
            annotation=delta.annotation,
        )

    def _refusal(self, delta: Refusal) -> None:
        self._pieces.append(delta.text)
        self._emit_part("response.refusal.delta", delta=delta.text)

    def _reasoning(self, delta: Reasoning) -> None:
        self._pieces.append(delta.text)
        self._emit_part("response.reasoning_text.delta", delta=delta.text)

    def _arguments(self, delta: CallArguments) -> None:
        self._pieces.append(delta.text)
        self._emit_item("response.function_call_arguments.delta", delta=delta.text)

    def _input(self, delta: CustomInput) -> None:
        self._pieces.append(delta.text)
        self._emit_item("response.custom_tool_call_input.delta", delta=delta.text)

    def _close_text(self, _: Any) -> None:
        self._part["logprobs"] = list(self._logprobs)
        self._done_part("response.output_text.done", "text", logprobs=self._part["logprobs"])

    def _close_refusal(self, _: Any) -> None:
        self._done_part("response.refusal.done", "refusal")

    def _close_reasoning(self, _: Any) -> None:
        self._done_part("response.reasoning_text.done", "text")

    def _close_call(self, _: Any) -> None:
        self._item["arguments"] = arguments = "".join(self._pieces)
        self._emit_item("response.function_call_arguments.done", arguments=arguments, name=self._item["name"])

    def _close_custom(self, _: Any) -> None:
        self._item["input"] = text = "".join(self._pieces)
        self._emit_item("response.custom_tool_call_input.done", input=text)

    def _close_item(self, _: Any) -> None:
        """Ends the open item: `incomplete` where the response ends in the middle of it."""
        self._item["status"] = "incomplete" if self._is_cut() else "completed"
        if self.seal is not None and self._item["type"] == "reasoning":
            self._item["encrypted_content"] = self.seal("".join(part["text"] for part in self._item["content"]))
        self._emit("response.output_item.done", output_index=self._index, item=_copy(self._item))

    def _is_cut(self) -> bool:
        event, argument = self._current
        if event is Input.FINISH:
            finish: Finish = argument[0]
            return finish.reason is FinishReason.LENGTH
        return event in (Input.FAIL, Input.CANCEL)

    # -- going on ------------------------------------------------------------------------------------------

    def _reopen(self) -> State:
        """The state that the last item tells, its text taken up again."""
        if not self._output or self._item["status"] != "in_progress":
            return State.IDLE
        state = State(self._item["type"])
        if state in _CALL_TEXT:
            self._pieces = [self._item[_CALL_TEXT[state]]]
        elif "refusal" in self._part:
            state, self._pieces = State.REFUSAL, [self._part["refusal"]]
        else:
            self._pieces, self._logprobs = [self._part["text"]], list(self._part.get("logprobs", ()))
        return state


_CALL_TEXT = {State.CALL: "arguments", State.CUSTOM: "input"}


def _copy(value: Any) -> Any:
    """An item or part as an event shows it: later changes must not show there."""
    if isinstance(value, dict):
        return {key: _copy(item) if isinstance(item, list) else item for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


_STEPS: dict[str, Callable[[ResponseStream, Any], None]] = {
    "created": ResponseStream._created,
    "queued": ResponseStream._queued,
    "in_progress": ResponseStream._in_progress,
    "finish": ResponseStream._finish,
    "fail": ResponseStream._fail,
    "cancel": ResponseStream._cancel,
    "open_message": ResponseStream._open_message,
    "open_text": ResponseStream._open_text,
    "open_refusal": ResponseStream._open_refusal,
    "open_reasoning": ResponseStream._open_reasoning,
    "open_call": ResponseStream._open_call,
    "open_custom": ResponseStream._open_custom,
    "text": ResponseStream._text,
    "annotation": ResponseStream._annotation,
    "refusal": ResponseStream._refusal,
    "reasoning": ResponseStream._reasoning,
    "arguments": ResponseStream._arguments,
    "input": ResponseStream._input,
    "close_text": ResponseStream._close_text,
    "close_refusal": ResponseStream._close_refusal,
    "close_reasoning": ResponseStream._close_reasoning,
    "close_call": ResponseStream._close_call,
    "close_custom": ResponseStream._close_custom,
    "close_item": ResponseStream._close_item,
}
