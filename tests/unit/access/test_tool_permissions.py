"""Which kinds of hosted tool a project may use."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.access.changes import AdministrationError
from app.access.tool_permissions import enabled_tools, permitted_after, permitted_servers
from app.store.tenants.projects import ProjectRow
from config.tools import McpServer

SERVERS = (McpServer("python", "python", "http://x"), McpServer("docs", "mcp", "http://y"))
PLAIN = ProjectRow("proj_a", "a", None, None, datetime(2026, 11, 1, tzinfo=UTC), None)
NO_SERVERS = replace(PLAIN, tool_servers=frozenset[str]())


def after(project: ProjectRow, **wanted: bool) -> ProjectRow:
    labels, denied = permitted_after(project, wanted, SERVERS)
    return replace(project, tool_servers=None if labels is None else frozenset(labels), denied_tools=frozenset(denied))


def test_a_denied_kind_takes_its_servers_away_and_no_others() -> None:
    denied = after(PLAIN, code_interpreter=False)
    assert permitted_servers(denied, SERVERS) == {"docs"}
    assert enabled_tools(denied, SERVERS) == {
        "code_interpreter": False,
        "web_search": True,
        "mcp": True,
        "file_search": False,
        "image_generation": False,
    }
    assert after(denied, code_interpreter=True) == PLAIN


def test_a_server_that_is_added_later_is_denied_with_its_kind() -> None:
    later = McpServer("second", "python", "http://z")
    assert permitted_servers(after(PLAIN, code_interpreter=False), (*SERVERS, later)) == {"docs"}


def test_a_kind_whose_servers_are_all_kept_away_is_not_enabled() -> None:
    assert not any(enabled_tools(NO_SERVERS, SERVERS).values())
    enabled = after(NO_SERVERS, mcp=True)
    assert enabled.tool_servers == {"docs"} and enabled_tools(enabled, SERVERS)["mcp"]


@pytest.mark.parametrize("name", ["file_search", "image_generation"])
def test_a_tool_that_no_server_has_cannot_be_enabled(name: str) -> None:
    with pytest.raises(AdministrationError, match="has no such tool"):
        after(PLAIN, **{name: True})
    assert after(PLAIN, **{name: False}) == PLAIN


def test_a_kind_without_servers_cannot_be_enabled_for_a_project_with_a_list() -> None:
    with pytest.raises(AdministrationError, match="no server here runs it"):
        after(NO_SERVERS, web_search=True)
