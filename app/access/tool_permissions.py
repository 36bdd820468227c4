"""Which kinds of hosted tool a project may use: `code_interpreter`, `web_search`, `mcp`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from app.access.changes import AdministrationError
from app.protocol.hosted_kinds import HOSTED_KINDS, HostedToolKind
from app.store.tenants.projects import ProjectRow
from config.tools import McpServer

UNSUPPORTED = ("file_search", "image_generation")
"""Hosted tools of OpenAI's that no server here runs."""


def permitted_servers(project: ProjectRow, servers: Iterable[McpServer]) -> frozenset[str]:
    """Returns the labels of those servers that the project may use."""
    denied = {kind.server_kind for kind in HOSTED_KINDS if kind.name in project.denied_tools}
    allowed = (server for server in servers if server.kind not in denied)
    return frozenset(
        server.label for server in allowed if project.tool_servers is None or server.label in project.tool_servers
    )


def enabled_tools(project: ProjectRow, servers: Iterable[McpServer]) -> dict[str, bool]:
    """Returns of each kind whether the project may use it. It may use no kind whose servers are all kept from it."""
    enabled = {
        kind.name: kind.name not in project.denied_tools
        and (project.tool_servers is None or not project.tool_servers.isdisjoint(_labels(kind, servers)))
        for kind in HOSTED_KINDS
    }
    return enabled | dict.fromkeys(UNSUPPORTED, False)


def permitted_after(
    project: ProjectRow, wanted: Mapping[str, bool], servers: Sequence[McpServer]
) -> tuple[Collection[str] | None, Collection[str]]:
    """Returns the MCP servers that the project may use (None: all), and the kinds that it may not.

    Where a kind is enabled whose servers were all kept from it, it gets them all. Raises AdministrationError.
    """
    for name in UNSUPPORTED:
        if wanted.get(name):
            raise AdministrationError(f"'{name}' cannot be enabled: this server has no such tool", name)
    labels, denied = project.tool_servers, set(project.denied_tools)
    for kind in HOSTED_KINDS:
        if not wanted.get(kind.name, True):
            denied.add(kind.name)
        elif kind.name in wanted:
            denied.discard(kind.name)
            of_kind = _labels(kind, servers)
            if labels is not None and labels.isdisjoint(of_kind):
                if not of_kind:
                    raise AdministrationError(f"'{kind.name}' cannot be enabled: no server here runs it", kind.name)
                labels |= of_kind
    return labels, denied


def _labels(kind: HostedToolKind, servers: Iterable[McpServer]) -> frozenset[str]:
    return frozenset(server.label for server in servers if server.kind == kind.server_kind)
