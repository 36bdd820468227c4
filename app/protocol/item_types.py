"""The types of items, listed once for every package that tells them apart."""

from __future__ import annotations

from typing import Literal, get_args

ItemType = Literal[
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "compaction",
    "code_interpreter_call",
    "web_search_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
]
ITEM_TYPES: frozenset[str] = frozenset(get_args(ItemType))

MCP_CALL = "mcp_call"
MCP_LIST_TOOLS = "mcp_list_tools"
APPROVAL_REQUEST = "mcp_approval_request"
APPROVAL_RESPONSE = "mcp_approval_response"

HOSTED_CALLS = frozenset({"code_interpreter_call", "web_search_call", MCP_CALL})
"""Calls of hosted tools: the server ran them, and models were told their results."""
