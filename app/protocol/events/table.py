"""The table of the event machine: which input is legal in which state, what it does, and which state follows.

A response is a list of items, and at most one of them is open. `TABLE` has a cell for every legal input: the actions
that it takes (actions.py, hosted_actions.py) and the next state. The state names the open item's type; an input that
does not belong to that item closes it first. A call of a hosted tool is closed like other items but is not done: it
stays pending until its result arrives or the response ends.
"""

from __future__ import annotations

from enum import Enum

from app.protocol.events import actions
from app.protocol.events import hosted_actions as hosted
from app.protocol.events.actions import Action
from app.protocol.events.deltas import (
    Annotation,
    Approval,
    CallArguments,
    CallStart,
    CodeStart,
    CodeText,
    Compacted,
    Compacting,
    CompactionStart,
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
    ToolSearch,
    TurnEnd,
    WholeCall,
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
    SUMMARIZED = "reasoning with a summary"
    """Reasoning is open, and a summary that is written with it."""
    CALL = "function_call"
    CUSTOM = "custom_tool_call"
    CODE = "code_interpreter_call"
    MCP = "mcp_call"
    COMPACTION = "compaction"
    ENDED = "ended"


class Input(Enum):
    ACCEPT = "accept"
    BEGIN = "begin"
    TEXT = "text"
    OTHER_TEXT = "text of another phase"
    """A phase that the open message does not have: the text always opens a message of its own."""
    REASONING = "reasoning"
    SUMMARIZED = "reasoning with a summary"
    """Reasoning of a response that was asked for a summary of it."""
    REFUSAL = "refusal"
    ANNOTATION = "annotation"
    CALL_START = "call start"
    CALL_ARGUMENTS = "call arguments"
    CUSTOM_START = "custom call start"
    CUSTOM_INPUT = "custom call input"
    TOOL_SEARCH = "tool search"
    CODE_START = "code start"
    CODE_TEXT = "code"
    MCP_START = "mcp call start"
    MCP_ARGUMENTS = "mcp call arguments"
    WHOLE_CALL = "whole hosted call"
    APPROVAL = "approval request"
    LISTING = "listing of tools"
    LISTED = "list of tools"
    TURN_END = "end of turn"
    TOOL_ENDED = "tool ended"
    COMPACTION_START = "compaction start"
    COMPACTING = "compacting"
    COMPACTED = "compacted"
    FINISH = "finish"
    SILENT_FINISH = "finish without an answer"
    """An empty message stands for the answer: clients expect a message or a call."""
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
    ToolSearch: Input.TOOL_SEARCH,
    CodeStart: Input.CODE_START,
    CodeText: Input.CODE_TEXT,
    McpStart: Input.MCP_START,
    McpArguments: Input.MCP_ARGUMENTS,
    WholeCall: Input.WHOLE_CALL,
    Approval: Input.APPROVAL,
    Listing: Input.LISTING,
    Listed: Input.LISTED,
    TurnEnd: Input.TURN_END,
    ToolEnded: Input.TOOL_ENDED,
    CompactionStart: Input.COMPACTION_START,
    Compacting: Input.COMPACTING,
    Compacted: Input.COMPACTED,
}

Cell = tuple[tuple[Action, ...], State]

_ENDINGS: dict[Input, Cell] = {
    Input.FINISH: ((hosted.end_pending, actions.finish), State.ENDED),
    Input.SILENT_FINISH: (
        (
            hosted.end_pending,
            actions.open_message,
            actions.open_text,
            actions.close_text,
            actions.close_item,
            actions.finish,
        ),
        State.ENDED,
    ),
    Input.FAIL: ((hosted.end_pending, actions.fail), State.ENDED),
    Input.CANCEL: ((hosted.end_pending, actions.cancel), State.ENDED),
}
_STARTS: dict[Input, Cell] = {
    Input.TEXT: ((actions.open_message, actions.open_text, actions.add_text), State.MESSAGE),
    Input.OTHER_TEXT: ((actions.open_message, actions.open_text, actions.add_text), State.MESSAGE),
    Input.REFUSAL: ((actions.open_message, actions.open_refusal, actions.add_refusal), State.REFUSAL),
    Input.REASONING: ((actions.open_reasoning, actions.add_reasoning), State.REASONING),
    Input.SUMMARIZED: (
        (actions.open_reasoning, actions.open_summary, actions.add_reasoning, actions.add_summary),
        State.SUMMARIZED,
    ),
    Input.CALL_START: ((actions.open_call,), State.CALL),
    Input.CUSTOM_START: ((actions.open_custom,), State.CUSTOM),
    Input.TOOL_SEARCH: ((actions.add_tool_search,), State.IDLE),
    Input.CODE_START: ((hosted.open_code,), State.CODE),
    Input.MCP_START: ((hosted.open_mcp,), State.MCP),
    Input.WHOLE_CALL: ((hosted.add_whole_call,), State.IDLE),
    Input.APPROVAL: ((hosted.request_approval,), State.IDLE),
    Input.LISTING: ((hosted.start_list,), State.IDLE),
    Input.TURN_END: ((hosted.start_calls,), State.IDLE),
}


def _in_progress(*own: tuple[Input, Cell], close: tuple[Action, ...] = ()) -> dict[Input, Cell]:
    """The row of a state in progress: its `own` cells, and those that `close` the open item first."""
    common = {event: ((*close, *steps), state) for event, (steps, state) in (_STARTS | _ENDINGS).items()}
    return common | dict(own)


TABLE: dict[State, dict[Input, Cell]] = {
    State.NEW: {Input.ACCEPT: ((actions.create, actions.queue), State.QUEUED)},
    State.QUEUED: {
        Input.BEGIN: ((actions.begin,), State.IDLE),
        Input.FAIL: ((actions.fail,), State.ENDED),
        Input.CANCEL: ((actions.cancel,), State.ENDED),
    },
    State.IDLE: _in_progress(
        (Input.TOOL_ENDED, ((hosted.end_call,), State.IDLE)),
        (Input.LISTED, ((hosted.end_list,), State.IDLE)),
        (Input.COMPACTION_START, ((actions.open_compaction,), State.COMPACTION)),
    ),
    State.MESSAGE: _in_progress(
        (Input.TEXT, ((actions.add_text,), State.MESSAGE)),
        (Input.ANNOTATION, ((actions.add_annotation,), State.MESSAGE)),
        (Input.REFUSAL, ((actions.close_text, actions.open_refusal, actions.add_refusal), State.REFUSAL)),
        close=(actions.close_text, actions.close_item),
    ),
    State.REFUSAL: _in_progress(
        (Input.REFUSAL, ((actions.add_refusal,), State.REFUSAL)),
        (Input.TEXT, ((actions.close_refusal, actions.open_text, actions.add_text), State.MESSAGE)),
        close=(actions.close_refusal, actions.close_item),
    ),
    State.REASONING: _in_progress(
        (Input.REASONING, ((actions.add_reasoning,), State.REASONING)),
        close=(actions.close_reasoning, actions.close_item),
    ),
    State.SUMMARIZED: _in_progress(
        (Input.SUMMARIZED, ((actions.add_reasoning, actions.add_summary), State.SUMMARIZED)),
        close=(actions.close_reasoning, actions.close_summary, actions.close_item),
    ),
    State.CALL: _in_progress(
        (Input.CALL_ARGUMENTS, ((actions.add_arguments,), State.CALL)),
        close=(actions.close_call, actions.close_item),
    ),
    State.CUSTOM: _in_progress(
        (Input.CUSTOM_INPUT, ((actions.add_input,), State.CUSTOM)),
        close=(actions.close_custom, actions.close_item),
    ),
    State.CODE: _in_progress((Input.CODE_TEXT, ((hosted.add_call_text,), State.CODE)), close=(hosted.close_call,)),
    State.MCP: _in_progress((Input.MCP_ARGUMENTS, ((hosted.add_call_text,), State.MCP)), close=(hosted.close_call,)),
    State.COMPACTION: {
        Input.COMPACTING: ((actions.note_compacting,), State.COMPACTION),
        Input.COMPACTED: ((actions.set_compaction, actions.close_item), State.IDLE),
        Input.FAIL: ((actions.close_item, *_ENDINGS[Input.FAIL][0]), State.ENDED),
        Input.CANCEL: ((actions.close_item, *_ENDINGS[Input.CANCEL][0]), State.ENDED),
    },
    State.ENDED: {},
}
