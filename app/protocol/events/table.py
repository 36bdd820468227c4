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
    CallCut,
    CallStart,
    CodeStart,
    CodeText,
    Compacted,
    Compacting,
    CompactionStart,
    CustomInput,
    CustomStart,
    Delta,
    Listed,
    Listing,
    LocalCall,
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
    OTHER_TEXT = "text of another phase"
    """A phase that the open message does not have: the text always opens a message of its own."""
    SUMMARIZED = "reasoning with a summary"
    """Reasoning of a response that was asked for a summary of it."""
    FINISH = "finish"
    SILENT_FINISH = "finish without an answer"
    """An empty message stands for the answer: clients expect a message or a call."""
    FAIL = "fail"
    CANCEL = "cancel"


Key = Input | type[Delta]
"""An input of the machine: what happened to the response, or a delta by its class."""
Cell = tuple[tuple[Action, ...], State]

_ENDINGS: dict[Key, Cell] = {
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
_STARTS: dict[Key, Cell] = {
    Text: ((actions.open_message, actions.open_text, actions.add_text), State.MESSAGE),
    Input.OTHER_TEXT: ((actions.open_message, actions.open_text, actions.add_text), State.MESSAGE),
    Refusal: ((actions.open_message, actions.open_refusal, actions.add_refusal), State.REFUSAL),
    Reasoning: ((actions.open_reasoning, actions.add_reasoning), State.REASONING),
    Input.SUMMARIZED: (
        (actions.open_reasoning, actions.open_summary, actions.add_reasoning, actions.add_summary),
        State.SUMMARIZED,
    ),
    CallStart: ((actions.open_call,), State.CALL),
    CustomStart: ((actions.open_custom,), State.CUSTOM),
    ToolSearch: ((actions.add_tool_search,), State.IDLE),
    LocalCall: ((actions.add_local_call,), State.IDLE),
    CodeStart: ((hosted.open_code,), State.CODE),
    McpStart: ((hosted.open_mcp,), State.MCP),
    WholeCall: ((hosted.add_whole_call,), State.IDLE),
    Approval: ((hosted.request_approval,), State.IDLE),
    Listing: ((hosted.start_list,), State.IDLE),
    TurnEnd: ((hosted.start_calls,), State.IDLE),
}


def _in_progress(*own: tuple[Key, Cell], close: tuple[Action, ...] = ()) -> dict[Key, Cell]:
    """The row of a state in progress: its `own` cells, and those that `close` the open item first."""
    common = {event: ((*close, *steps), state) for event, (steps, state) in (_STARTS | _ENDINGS).items()}
    return common | dict(own)


TABLE: dict[State, dict[Key, Cell]] = {
    State.NEW: {Input.ACCEPT: ((actions.create, actions.queue), State.QUEUED)},
    State.QUEUED: {
        Input.BEGIN: ((actions.begin,), State.IDLE),
        Input.FAIL: ((actions.fail,), State.ENDED),
        Input.CANCEL: ((actions.cancel,), State.ENDED),
    },
    State.IDLE: _in_progress(
        (ToolEnded, ((hosted.end_call,), State.IDLE)),
        (Listed, ((hosted.end_list,), State.IDLE)),
        (CompactionStart, ((actions.open_compaction,), State.COMPACTION)),
    ),
    State.MESSAGE: _in_progress(
        (Text, ((actions.add_text,), State.MESSAGE)),
        (Annotation, ((actions.add_annotation,), State.MESSAGE)),
        (Refusal, ((actions.close_text, actions.open_refusal, actions.add_refusal), State.REFUSAL)),
        close=(actions.close_text, actions.close_item),
    ),
    State.REFUSAL: _in_progress(
        (Refusal, ((actions.add_refusal,), State.REFUSAL)),
        (Text, ((actions.close_refusal, actions.open_text, actions.add_text), State.MESSAGE)),
        close=(actions.close_refusal, actions.close_item),
    ),
    State.REASONING: _in_progress(
        (Reasoning, ((actions.add_reasoning,), State.REASONING)),
        close=(actions.close_reasoning, actions.close_item),
    ),
    State.SUMMARIZED: _in_progress(
        (Input.SUMMARIZED, ((actions.add_reasoning, actions.add_summary), State.SUMMARIZED)),
        close=(actions.close_reasoning, actions.close_summary, actions.close_item),
    ),
    State.CALL: _in_progress(
        (CallArguments, ((actions.add_arguments,), State.CALL)),
        (CallCut, ((actions.close_call, actions.cut_item), State.IDLE)),
        close=(actions.close_call, actions.close_item),
    ),
    State.CUSTOM: _in_progress(
        (CustomInput, ((actions.add_input,), State.CUSTOM)),
        (CallCut, ((actions.close_custom, actions.cut_item), State.IDLE)),
        close=(actions.close_custom, actions.close_item),
    ),
    State.CODE: _in_progress((CodeText, ((hosted.add_call_text,), State.CODE)), close=(hosted.close_call,)),
    State.MCP: _in_progress((McpArguments, ((hosted.add_call_text,), State.MCP)), close=(hosted.close_call,)),
    State.COMPACTION: {
        Compacting: ((actions.note_compacting,), State.COMPACTION),
        Compacted: ((actions.set_compaction, actions.close_item), State.IDLE),
        Input.FAIL: ((actions.close_item, *_ENDINGS[Input.FAIL][0]), State.ENDED),
        Input.CANCEL: ((actions.close_item, *_ENDINGS[Input.CANCEL][0]), State.ENDED),
    },
    State.ENDED: {},
}
