"""The types of items, and the sets of types that are treated alike."""

from __future__ import annotations

from app.protocol.hosted_kinds import KIND_OF_CALL, MCP

MESSAGE = "message"
REASONING = "reasoning"
COMPACTION = "compaction"
MCP_CALL = MCP.call_type
MCP_LIST_TOOLS = "mcp_list_tools"
APPROVAL_REQUEST = "mcp_approval_request"
APPROVAL_RESPONSE = "mcp_approval_response"

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
    REASONING,
    COMPACTION,
    *KIND_OF_CALL,
    MCP_LIST_TOOLS,
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
)
"""All types of stored items."""

CLIENT_CALLS = frozenset({"function_call", "custom_tool_call"})
"""Calls that the client runs."""

CLIENT_OUTPUTS = frozenset(f"{call}_output" for call in CLIENT_CALLS)
"""Outputs that the client sends for its calls."""

HOSTED_CALLS = frozenset(KIND_OF_CALL)
"""Calls that a worker runs: those of hosted tools."""

CLIENT_ACTIONS = CLIENT_CALLS | {APPROVAL_REQUEST}
"""Output items that the client must answer: the response ends after them."""

BEFORE_ANSWER = HOSTED_CALLS | {REASONING, MCP_LIST_TOOLS}
"""Output items after which the client still waits for an answer."""

UNSUPPORTED_ITEMS = frozenset(
    {
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
    }
)
"""Item types of openai's ResponseInputItemParam that are refused; a test compares the list with the package."""
