"""The table of the event state machine: what may come when, which steps it means, and what follows.

A response is a row of items; at most one is open. For every state and input, `TABLE` says which steps are taken
(`steps.py` and `hosted.py` have them) and which state follows. An input with no cell is illegal. The open item's
state names its type, and whatever does not belong to it closes it first. A call that the server runs itself is closed
like any other item, but is not done: it stays pending, beside whatever comes, until its result or the end.
"""

from __future__ import annotations

from enum import Enum

from app.protocol.events import actions, hosted_actions
from app.protocol.events.actions import Action
from app.protocol.events.deltas import (
    Annotation,
    Approval,
    CallArguments,
    CallStart,
    CodeStart,
    CodeText,
    CustomInput,
    CustomStart,
    Listed,
    Listing,
    McpArguments,
    McpStart,
    Reasoning,
    Refusal,
    Text,
    ToolEnded,
    TurnEnd,
    WebSearch,
)


class State(Enum):
    NEW = "new"
    QUEUED = "queued"
    IDLE = "idle"
    """In progress, no item open; calls may be pending."""
    MESSAGE = "message"
    """A message is open, with a text part."""
    REFUSAL = "refusal"
    """A message is open, with a refusal part."""
    REASONING = "reasoning"
    CALL = "function_call"
    CUSTOM = "custom_tool_call"
    CODE = "code_interpreter_call"
    MCP = "mcp_call"
    ENDED = "ended"


class Input(Enum):
    OPEN = "open"
    BEGIN = "begin"
    TEXT = "text"
    OTHER_TEXT = "text of another phase"
    """Than that of the open message: always one of its own."""
    REASONING = "reasoning"
    REFUSAL = "refusal"
    ANNOTATION = "annotation"
    CALL_START = "call start"
    CALL_ARGUMENTS = "call arguments"
    CUSTOM_START = "custom call start"
    CUSTOM_INPUT = "custom call input"
    CODE_START = "code start"
    CODE_TEXT = "code"
    MCP_START = "mcp call start"
    MCP_ARGUMENTS = "mcp call arguments"
    WEB_SEARCH = "web search"
    APPROVAL = "approval request"
    LISTING = "listing of tools"
    LISTED = "list of tools"
    TURN_END = "end of turn"
    TOOL_ENDED = "tool ended"
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
    CodeStart: Input.CODE_START,
    CodeText: Input.CODE_TEXT,
    McpStart: Input.MCP_START,
    McpArguments: Input.MCP_ARGUMENTS,
    WebSearch: Input.WEB_SEARCH,
    Approval: Input.APPROVAL,
    Listing: Input.LISTING,
    Listed: Input.LISTED,
    TurnEnd: Input.TURN_END,
    ToolEnded: Input.TOOL_ENDED,
}

Cell = tuple[tuple[Action, ...], State]

_ENDINGS: dict[Input, Cell] = {
    Input.FINISH: ((hosted_actions.close_pending, actions.finish), State.ENDED),
    Input.FAIL: ((hosted_actions.close_pending, actions.fail), State.ENDED),
    Input.CANCEL: ((hosted_actions.close_pending, actions.cancel), State.ENDED),
}


def _open(*extra: tuple[Input, Cell], close: tuple[Action, ...] = ()) -> dict[Input, Cell]:
    """The row of a state in progress: what starts another item closes the open one first."""
    row: dict[Input, Cell] = {
        Input.TEXT: ((actions.open_message, actions.open_text, actions.text), State.MESSAGE),
        Input.OTHER_TEXT: ((actions.open_message, actions.open_text, actions.text), State.MESSAGE),
        Input.REFUSAL: ((actions.open_message, actions.open_refusal, actions.refusal), State.REFUSAL),
        Input.REASONING: ((actions.open_reasoning, actions.reasoning), State.REASONING),
        Input.CALL_START: ((actions.open_call,), State.CALL),
        Input.CUSTOM_START: ((actions.open_custom,), State.CUSTOM),
        Input.CODE_START: ((hosted_actions.open_code,), State.CODE),
        Input.MCP_START: ((hosted_actions.open_mcp,), State.MCP),
        Input.WEB_SEARCH: ((hosted_actions.web_search,), State.IDLE),
        Input.APPROVAL: ((hosted_actions.approval,), State.IDLE),
        Input.LISTING: ((hosted_actions.listing,), State.IDLE),
        Input.TURN_END: ((hosted_actions.start_calls,), State.IDLE),
    }
    return {event: ((*close, *steps), state) for event, (steps, state) in (row | _ENDINGS).items()} | dict(extra)


TABLE: dict[State, dict[Input, Cell]] = {
    State.NEW: {Input.OPEN: ((actions.created, actions.queued), State.QUEUED)},
    State.QUEUED: {
        Input.BEGIN: ((actions.in_progress,), State.IDLE),
        Input.FAIL: ((actions.fail,), State.ENDED),
        Input.CANCEL: ((actions.cancel,), State.ENDED),
    },
    State.IDLE: _open(
        (Input.TOOL_ENDED, ((hosted_actions.tool_ended,), State.IDLE)),
        (Input.LISTED, ((hosted_actions.listed,), State.IDLE)),
    ),
    State.MESSAGE: _open(
        (Input.TEXT, ((actions.text,), State.MESSAGE)),
        (Input.ANNOTATION, ((actions.annotation,), State.MESSAGE)),
        (Input.REFUSAL, ((actions.close_text, actions.open_refusal, actions.refusal), State.REFUSAL)),
        close=(actions.close_text, actions.close_item),
    ),
    State.REFUSAL: _open(
        (Input.REFUSAL, ((actions.refusal,), State.REFUSAL)),
        (Input.TEXT, ((actions.close_refusal, actions.open_text, actions.text), State.MESSAGE)),
        close=(actions.close_refusal, actions.close_item),
    ),
    State.REASONING: _open(
        (Input.REASONING, ((actions.reasoning,), State.REASONING)), close=(actions.close_reasoning, actions.close_item)
    ),
    State.CALL: _open(
        (Input.CALL_ARGUMENTS, ((actions.arguments,), State.CALL)), close=(actions.close_call, actions.close_item)
    ),
    State.CUSTOM: _open(
        (Input.CUSTOM_INPUT, ((actions.input_,), State.CUSTOM)), close=(actions.close_custom, actions.close_item)
    ),
    State.CODE: _open((Input.CODE_TEXT, ((hosted_actions.code,), State.CODE)), close=(hosted_actions.close_code,)),
    State.MCP: _open(
        (Input.MCP_ARGUMENTS, ((hosted_actions.mcp_arguments,), State.MCP)), close=(hosted_actions.close_mcp,)
    ),
    State.ENDED: {},
}
