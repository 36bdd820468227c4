"""What a request's `mcp` tool says of one tool that its server lists: whether it is offered, and whether to ask first.

`tool` is an entry of an mcp_list_tools item. Source: openai's tool_param.Mcp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]


def is_offered(spec: Json, tool: Json) -> bool:
    """By `allowed_tools`: names, a filter, or nothing."""
    allowed = spec.get("allowed_tools")
    if allowed is None:
        return True
    if isinstance(allowed, Mapping):
        return _matches(allowed, tool)
    return tool["name"] in allowed


def needs_approval(spec: Json, tool: Json) -> bool:
    """By `require_approval`. Of two filters, what neither names is asked for; so is what `never` alone leaves out."""
    rule = spec.get("require_approval") or "always"
    if not isinstance(rule, Mapping):
        return bool(rule != "never")
    always, never = rule.get("always"), rule.get("never")
    if always is not None and _matches(always, tool):
        return True
    if never is not None and _matches(never, tool):
        return False
    return never is not None or always is None


def _matches(rule: Json, tool: Json) -> bool:
    """A filter with nothing in it matches nothing."""
    names, read_only = rule.get("tool_names"), rule.get("read_only")
    if names is None and read_only is None:
        return False
    named = names is None or tool["name"] in names
    return named and (read_only is None or read_only is _reads_only(tool))


def _reads_only(tool: Json) -> bool:
    """A hint of the server's."""
    return bool((tool.get("annotations") or {}).get("readOnlyHint"))
