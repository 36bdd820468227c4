"""Hosted tools: their secrets, the MCP servers that may run them, and their approvals."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.protocol.errors import ErrorObject, InvalidRequest
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.response import response_object
from app.responses.create.approvals import check_approvals, has_approvals
from app.responses.create.mcp_servers import check_servers
from config.tools import McpServer
from tests.support.refusals import APPROVAL, CODE, DOCS_URL, FUNCTION, MCP, MCP_CALL, WEB
from tests.support.requests import parse_request

Json = dict[str, Any]


def parsed(*tools: Json) -> ResponseRequest:
    return parse_request(orjson.dumps({"model": "m", "input": "x", "tools": tools}))


# -- secrets -----------------------------------------------------------------------------------------------------

SENT = [
    {**MCP, "authorization": "hunter2", "headers": {"X-Key": "hunter3"}},
    {**MCP, "server_label": "wiki", "headers": {"X-Key": "hunter4"}},
    {**MCP, "server_label": "open"},
]


def test_secrets_are_headers_by_server_label_and_neither_stored_nor_shown() -> None:
    request = parsed(*SENT)
    assert request.secrets() == {
        "docs": {"Authorization": "Bearer hunter2", "X-Key": "hunter3"},
        "wiki": {"X-Key": "hunter4"},
    }
    document = request.stored("resp_1", {})
    assert b"hunter" not in orjson.dumps(document)
    assert b"hunter" not in orjson.dumps(response_object(document, response_id="resp_1", created_at=1))
    assert "hunter" not in repr(request.fields)
    with pytest.raises(InvalidRequest) as caught:
        parsed({**MCP, "headers": {"X-Key": "hunter2\n"}})
    assert "hunter2" not in caught.value.error.message


# -- servers -----------------------------------------------------------------------------------------------------

SERVERS = (
    McpServer("sandbox", "python", "http://127.0.0.1:1/mcp"),
    McpServer("docs", "mcp", DOCS_URL),
    McpServer("wiki", "mcp", "https://wiki.example/mcp", request_headers=True),
)
GUARDED = (McpServer("docs", "mcp", DOCS_URL, require_approval=True),)


def allowed(*tools: Json, servers: tuple[McpServer, ...] = SERVERS) -> None:
    check_servers(parsed(*tools).fields.tools or (), servers)


def not_allowed(*tools: Json, servers: tuple[McpServer, ...] = SERVERS) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        allowed(*tools, servers=servers)
    assert caught.value.error.code == "tool_server_not_allowed"
    assert f"'{caught.value.error.param}'" in caught.value.error.message
    return caught.value.error


def test_each_hosted_tool_has_a_kind_of_server() -> None:
    at_its_url = {**MCP, "server_label": "x", "server_url": DOCS_URL}
    allowed(CODE, FUNCTION, MCP, {**MCP, "server_label": "sandbox"}, at_its_url)
    allowed(WEB, servers=(McpServer("web", "browser", DOCS_URL),))
    allowed({**MCP, "server_label": "wiki", "headers": {"X-Key": "x"}, "authorization": "y"})


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        (WEB, "tools[1].type"),
        ({**MCP, "server_label": "other"}, "tools[1].server_label"),
        ({**MCP, "server_url": "http://169.254.169.254/latest/meta-data"}, "tools[1].server_url"),
        ({**MCP, "headers": {"X-Key": "x"}}, "tools[1].headers"),
        ({**MCP, "authorization": "x"}, "tools[1].authorization"),
    ],
)
def test_a_server_that_the_operator_did_not_allow_is_refused_with_its_path(tool: Json, path: str) -> None:
    assert not_allowed(FUNCTION, tool).param == path


def test_no_request_has_less_approval_than_the_operator_demands() -> None:
    for rule in (None, "always"):
        allowed({**MCP, "require_approval": rule}, servers=GUARDED)
    for less in ("never", {"never": {"tool_names": ["read"]}}, {"always": {"read_only": True}}):
        allowed({**MCP, "require_approval": less})
        found = not_allowed({**MCP, "require_approval": less}, servers=GUARDED)
        assert found.param == "tools[0].require_approval" and "send 'always'" in found.message


# -- approvals ---------------------------------------------------------------------------------------------------

REQUEST: Json = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "docs",
    "name": "write",
    "arguments": "{}",
}
DENIED = {**APPROVAL, "approve": False}
RAN = {**MCP_CALL, "approval_request_id": "mcpr_1"}
OTHER = {**REQUEST, "id": "x"}


def test_only_approval_responses_need_the_context() -> None:
    assert has_approvals([REQUEST, APPROVAL])
    assert not has_approvals([REQUEST, MCP_CALL])


@pytest.mark.parametrize(
    ("context", "sent", "tools", "code"),
    [
        ([REQUEST], [APPROVAL], [MCP], None),
        ([], [REQUEST, APPROVAL], [MCP], None),
        ([REQUEST], [DENIED], [], None),  # needs no tool
        ([], [REQUEST, APPROVAL, RAN], [], None),  # a call that ran needs no tool
        ([], [APPROVAL], [MCP], "invalid_value"),
        ([], [APPROVAL, REQUEST], [MCP], "invalid_value"),
        ([OTHER], [APPROVAL], [MCP], "invalid_value"),
        ([REQUEST], [APPROVAL], [], "invalid_value"),
        ([REQUEST], [APPROVAL], [{**MCP, "server_label": "x"}], "invalid_value"),
        ([REQUEST, APPROVAL], [APPROVAL], [MCP], "approval_already_given"),
        ([REQUEST, RAN], [APPROVAL], [MCP], "approval_already_given"),
        ([REQUEST], [APPROVAL, APPROVAL], [MCP], "approval_already_given"),
    ],
)
def test_an_approval_answers_a_request_of_the_context_or_of_the_input_once_and_for_a_tool(
    context: list[Json], sent: list[Json], tools: list[Json], code: str | None
) -> None:
    if code is None:
        check_approvals(context, sent, tools)
        return
    with pytest.raises(InvalidRequest) as caught:
        check_approvals(context, sent, tools)
    place = len(sent) - 1 if sent[-1] is APPROVAL else 0
    assert (caught.value.error.param, caught.value.error.code) == (f"input[{place}].approval_request_id", code)
