"""Whether a request's `mcp` tool offers a tool that its server lists, and whether a call needs approval.

`spec` is the request's tool, `tool` an entry of an mcp_list_tools item. Source: openai's tool_param.Mcp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Entry = Mapping[str, Any]


def is_offered(spec: Entry, tool: Entry) -> bool:
    """Whether `allowed_tools` (names, a filter, or nothing) admits the tool."""
    allowed = spec.get("allowed_tools")
    if allowed is None:
        return True
    if isinstance(allowed, Mapping):
        return _matches(allowed, tool)
    return tool["name"] in allowed


def needs_approval(spec: Entry, tool: Entry) -> bool:
    """Whether `require_approval` demands approval. It does for tools that neither of two filters matches, and for those
    that `never` alone does not match."""
    rule = spec.get("require_approval") or "always"
    if not isinstance(rule, Mapping):
        return bool(rule != "never")
    always, never = rule.get("always"), rule.get("never")
    if always is not None and _matches(always, tool):
        return True
    if never is not None and _matches(never, tool):
        return False
    return never is not None or always is None


def _matches(rule: Entry, tool: Entry) -> bool:
    """An empty filter matches nothing."""
    names, read_only = rule.get("tool_names"), rule.get("read_only")
    if names is None and read_only is None:
        return False
    named = names is None or tool["name"] in names
    return named and (read_only is None or read_only is _reads_only(tool))


def _reads_only(tool: Entry) -> bool:
    """The server's own hint."""
    return bool((tool.get("annotations") or {}).get("readOnlyHint"))
