"""The types of items, and the sets of types that are treated alike."""

from __future__ import annotations

from app.protocol.hosted_kinds import KIND_OF_CALL, MCP
from app.protocol.local_kinds import LOCAL_CALLS, LOCAL_KINDS

MESSAGE = "message"
REASONING = "reasoning"
COMPACTION = "compaction"
MCP_CALL = MCP.call_type
MCP_LIST_TOOLS = "mcp_list_tools"
APPROVAL_REQUEST = "mcp_approval_request"
APPROVAL_RESPONSE = "mcp_approval_response"
TOOL_SEARCH_CALL = "tool_search_call"
TOOL_SEARCH_OUTPUT = "tool_search_output"
SERVER = "server"
"""The `execution` of a tool search that a worker has made: nobody has to answer its call."""
ADDITIONAL_TOOLS = "additional_tools"

ITEM_REFERENCE = "item_reference"
"""Only in `input`: the item that it names is stored in its place."""

COMPACTION_TRIGGER = "compaction_trigger"
"""Only as the last item of `input`: it asks for a compaction, and is not stored."""

ITEM_TYPES = (
    MESSAGE,
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    TOOL_SEARCH_CALL,
    TOOL_SEARCH_OUTPUT,
    ADDITIONAL_TOOLS,
    *LOCAL_CALLS,
    *(kind.output_type for kind in LOCAL_KINDS),
    REASONING,
    COMPACTION,
    *KIND_OF_CALL,
    MCP_LIST_TOOLS,
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
)
"""All types of stored items."""

OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    TOOL_SEARCH_CALL: TOOL_SEARCH_OUTPUT,
    **{kind.call_type: kind.output_type for kind in LOCAL_KINDS},
}
"""The output that answers each kind of call that the client runs."""

CLIENT_CALLS = frozenset(OUTPUT_OF)
"""Calls that the client runs."""

CLIENT_OUTPUTS = frozenset(OUTPUT_OF.values())
"""Outputs that the client sends for its calls."""

TOOL_SOURCES = frozenset({TOOL_SEARCH_OUTPUT, ADDITIONAL_TOOLS})
"""Items that bring tools."""

HOSTED_CALLS = frozenset(KIND_OF_CALL)
"""Calls that a worker runs: those of hosted tools."""

CLIENT_ACTIONS = CLIENT_CALLS | {APPROVAL_REQUEST}
"""Output items that the client must answer: the response ends after them."""

BEFORE_ANSWER = HOSTED_CALLS | {REASONING, MCP_LIST_TOOLS}
"""Output items after which the client still waits for an answer."""

UNSUPPORTED_ITEMS = frozenset(
    {
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "file_search_call",
        "image_generation_call",
        "program",
        "program_output",
    }
)
"""Item types of openai's ResponseInputItemParam that are refused; a test compares the list with the package."""
