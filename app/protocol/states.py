"""The table of the event state machine: what may come when, which steps it means, and what follows.

A response is a row of items; at most one is open. For every state and input, `TABLE` says which steps are taken
(`stream.py` has them) and which state follows. An input with no cell is illegal. The open item's state names its
type, and whatever does not belong to it closes it first.
"""

from __future__ import annotations

from enum import Enum

from app.protocol.deltas import (
    Annotation,
    CallArguments,
    CallStart,
    CustomInput,
    CustomStart,
    Reasoning,
    Refusal,
    Text,
)


class State(Enum):
    NEW = "new"
    QUEUED = "queued"
    IDLE = "idle"
    """In progress, no item open."""
    MESSAGE = "message"
    """A message is open, with a text part."""
    REFUSAL = "refusal"
    """A message is open, with a refusal part."""
    REASONING = "reasoning"
    CALL = "function_call"
    CUSTOM = "custom_tool_call"
    ENDED = "ended"


class Input(Enum):
    OPEN = "open"
    BEGIN = "begin"
    TEXT = "text"
    REASONING = "reasoning"
    REFUSAL = "refusal"
    ANNOTATION = "annotation"
    CALL_START = "call start"
    CALL_ARGUMENTS = "call arguments"
    CUSTOM_START = "custom call start"
    CUSTOM_INPUT = "custom call input"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"


INPUT_OF: dict[type, Input] = {
    Text: Input.TEXT,
    Reasoning: Input.REASONING,
    Refusal: Input.REFUSAL,
    Annotation: Input.ANNOTATION,
    CallStart: Input.CALL_START,
    CallArguments: Input.CALL_ARGUMENTS,
    CustomStart: Input.CUSTOM_START,
    CustomInput: Input.CUSTOM_INPUT,
}

Cell = tuple[tuple[str, ...], State]

_ENDINGS: dict[Input, Cell] = {
    Input.FINISH: (("finish",), State.ENDED),
    Input.FAIL: (("fail",), State.ENDED),
    Input.CANCEL: (("cancel",), State.ENDED),
}


def _open(*extra: tuple[Input, Cell], close: tuple[str, ...] = ()) -> dict[Input, Cell]:
    """The row of a state in progress: what starts another item closes the open one first."""
    row: dict[Input, Cell] = {
        Input.TEXT: ((*close, "open_message", "open_text", "text"), State.MESSAGE),
        Input.REFUSAL: ((*close, "open_message", "open_refusal", "refusal"), State.REFUSAL),
        Input.REASONING: ((*close, "open_reasoning", "reasoning"), State.REASONING),
        Input.CALL_START: ((*close, "open_call"), State.CALL),
        Input.CUSTOM_START: ((*close, "open_custom"), State.CUSTOM),
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
    State.IDLE: _open(),
    State.MESSAGE: _open(
        (Input.TEXT, (("text",), State.MESSAGE)),
        (Input.ANNOTATION, (("annotation",), State.MESSAGE)),
        (Input.REFUSAL, (("close_text", "open_refusal", "refusal"), State.REFUSAL)),
        close=("close_text", "close_item"),
    ),
    State.REFUSAL: _open(
        (Input.REFUSAL, (("refusal",), State.REFUSAL)),
        (Input.TEXT, (("close_refusal", "open_text", "text"), State.MESSAGE)),
        close=("close_refusal", "close_item"),
    ),
    State.REASONING: _open(
        (Input.REASONING, (("reasoning",), State.REASONING)), close=("close_reasoning", "close_item")
    ),
    State.CALL: _open((Input.CALL_ARGUMENTS, (("arguments",), State.CALL)), close=("close_call", "close_item")),
    State.CUSTOM: _open((Input.CUSTOM_INPUT, (("input",), State.CUSTOM)), close=("close_custom", "close_item")),
    State.ENDED: {},
}
