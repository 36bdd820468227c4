"""The event state machine: what a model says in, numbered events out.

Theory. A response is a row of items; at most one is open. `TABLE` says for every state and input which
steps are taken and which state follows; an input with no cell is illegal: it raises and changes nothing.
Steps write events; each event gets the next sequence number at the one place where events are made.
The open item's state names its type, and whatever does not belong to it closes it first. The machine has
no clock, no ids of its own and no I/O: ids come from the response's id and the item's index, so that the
same deltas always give the same events, and `restore(events)` puts a machine where another one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from app.protocol.deltas import CallArguments, CallStart, Delta, Finish, FinishReason, Reasoning, Text
from app.protocol.frames import Event
from app.protocol.response import usage_object
from app.protocol.snapshot import fold
from app.protocol.status import Status

Json = dict[str, Any]


class IllegalInput(Exception):
    """An input that the machine's state does not allow: a bug of the caller."""


class State(Enum):
    NEW = "new"
    QUEUED = "queued"
    IDLE = "idle"
    """In progress, no item open."""
    MESSAGE = "message"
    REASONING = "reasoning"
    CALL = "function_call"
    ENDED = "ended"


class Input(Enum):
    OPEN = "open"
    BEGIN = "begin"
    TEXT = "text"
    REASONING = "reasoning"
    CALL_START = "call start"
    CALL_ARGUMENTS = "call arguments"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"


_INPUT_OF: dict[type, Input] = {
    Text: Input.TEXT,
    Reasoning: Input.REASONING,
    CallStart: Input.CALL_START,
    CallArguments: Input.CALL_ARGUMENTS,
}

Cell = tuple[tuple[str, ...], State]

_ENDINGS: dict[Input, Cell] = {
    Input.FINISH: (("finish",), State.ENDED),
    Input.FAIL: (("fail",), State.ENDED),
    Input.CANCEL: (("cancel",), State.ENDED),
}


def _open(*extra: tuple[Input, Cell], closing: bool) -> dict[Input, Cell]:
    """The row of a state in progress: what starts another item closes the open one first."""
    close = ("close",) if closing else ()
    row: dict[Input, Cell] = {
        Input.TEXT: ((*close, "open_message", "text"), State.MESSAGE),
        Input.REASONING: ((*close, "open_reasoning", "reasoning"), State.REASONING),
        Input.CALL_START: ((*close, "open_call"), State.CALL),
    }
    endings = {event: ((*close, *steps), state) for event, (steps, state) in _ENDINGS.items()}
    return row | endings | dict(extra)


TABLE: dict[State, dict[Input, Cell]] = {
    State.NEW: {Input.OPEN: (("created", "queued"), State.QUEUED)},
    State.QUEUED: {
        Input.BEGIN: (("in_progress",), State.IDLE),
        Input.FAIL: (("fail",), State.ENDED),
        Input.CANCEL: (("cancel",), State.ENDED),
    },
    State.IDLE: _open(closing=False),
    State.MESSAGE: _open((Input.TEXT, (("text",), State.MESSAGE)), closing=True),
    State.REASONING: _open((Input.REASONING, (("reasoning",), State.REASONING)), closing=True),
    State.CALL: _open((Input.CALL_ARGUMENTS, (("arguments",), State.CALL)), closing=True),
    State.ENDED: {},
}


class ResponseStream:
    """One response's events. `response` is its response object with no output, as it was created."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self._response: Json = {**response, "output": []}
        self._output: list[Json] = self._response["output"]
        self._state = State.NEW
        self._next = 0
        self._pieces: list[str] = []
        """The open item's text so far; joined when the item is closed."""
        self._logprobs: list[Json] = []
        self._events: list[Event] = []
        self._current: Any = None

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
        return self._process(_INPUT_OF[type(delta)], delta)

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
        suffix = self._response["id"].split("_", 1)[-1]
        item = {"id": f"{prefix}_{suffix}_{len(self._output)}", **fields, "status": "in_progress"}
        self._output.append(item)
        self._pieces = []
        self._logprobs = []
        self._emit("response.output_item.added", output_index=self._index, item=_copy(item))

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
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._item["content"].append(part)
        self._emit_item("response.content_part.added", content_index=0, part=_copy(part))

    def _open_reasoning(self, _: Any) -> None:
        self._add_item("rs", type="reasoning", summary=[], content=[], encrypted_content=None)
        part = {"type": "reasoning_text", "text": ""}
        self._item["content"].append(part)
        self._emit_item("response.content_part.added", content_index=0, part=_copy(part))

    def _open_call(self, delta: CallStart) -> None:
        self._add_item("fc", type="function_call", call_id=delta.call_id, name=delta.name, arguments="")

    def _text(self, delta: Text) -> None:
        self._pieces.append(delta.text)
        self._logprobs.extend(delta.logprobs)
        logprobs = list(delta.logprobs)
        self._emit_item("response.output_text.delta", content_index=0, delta=delta.text, logprobs=logprobs)

    def _reasoning(self, delta: Reasoning) -> None:
        self._pieces.append(delta.text)
        self._emit_item("response.reasoning_text.delta", content_index=0, delta=delta.text)

    def _arguments(self, delta: CallArguments) -> None:
        self._pieces.append(delta.text)
        self._emit_item("response.function_call_arguments.delta", delta=delta.text)

    def _close(self, _: Any) -> None:
        """Ends the open item: `incomplete` where the response ends in the middle of it."""
        _CLOSERS[self._state](self, "".join(self._pieces))
        self._item["status"] = "incomplete" if self._is_cut() else "completed"
        self._emit("response.output_item.done", output_index=self._index, item=_copy(self._item))

    def _is_cut(self) -> bool:
        event, argument = self._current
        if event is Input.FINISH:
            finish: Finish = argument[0]
            return finish.reason is FinishReason.LENGTH
        return event in (Input.FAIL, Input.CANCEL)

    def _close_message(self, text: str) -> None:
        part = self._item["content"][0]
        part |= {"text": text, "logprobs": list(self._logprobs)}
        self._emit_item("response.output_text.done", content_index=0, text=text, logprobs=part["logprobs"])
        self._emit_item("response.content_part.done", content_index=0, part=_copy(part))

    def _close_reasoning(self, text: str) -> None:
        part = self._item["content"][0]
        part["text"] = text
        self._emit_item("response.reasoning_text.done", content_index=0, text=text)
        self._emit_item("response.content_part.done", content_index=0, part=_copy(part))

    def _close_call(self, text: str) -> None:
        self._item["arguments"] = text
        self._emit_item("response.function_call_arguments.done", arguments=text, name=self._item["name"])

    # -- going on ------------------------------------------------------------------------------------------

    def _reopen(self) -> State:
        """The state that the last item's status tells, its text taken up again."""
        if not self._output or self._item["status"] != "in_progress":
            return State.IDLE
        state = State(self._item["type"])
        if state is State.CALL:
            self._pieces = [self._item["arguments"]]
        else:
            part = self._item["content"][0]
            self._pieces = [part["text"]]
            self._logprobs = list(part.get("logprobs", ()))
        return state


def _copy(item: Json) -> Json:
    """An item or part as an event shows it: later changes must not show there."""
    return {key: [*map(_copy, value)] if key == "content" else value for key, value in item.items()}


_STEPS: dict[str, Callable[[ResponseStream, Any], None]] = {
    "created": ResponseStream._created,
    "queued": ResponseStream._queued,
    "in_progress": ResponseStream._in_progress,
    "finish": ResponseStream._finish,
    "fail": ResponseStream._fail,
    "cancel": ResponseStream._cancel,
    "open_message": ResponseStream._open_message,
    "open_reasoning": ResponseStream._open_reasoning,
    "open_call": ResponseStream._open_call,
    "text": ResponseStream._text,
    "reasoning": ResponseStream._reasoning,
    "arguments": ResponseStream._arguments,
    "close": ResponseStream._close,
}

_CLOSERS: dict[State, Callable[[ResponseStream, str], None]] = {
    State.MESSAGE: ResponseStream._close_message,
    State.REASONING: ResponseStream._close_reasoning,
    State.CALL: ResponseStream._close_call,
}
