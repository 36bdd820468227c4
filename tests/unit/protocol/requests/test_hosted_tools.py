"""Hosted tools: what a request may ask of them, and which MCP servers may run them."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson
import pytest
from openai.types.responses import Response

from app.protocol.errors import ErrorObject, InvalidRequest
from app.protocol.hosted_kinds import WEB_SEARCH
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.response import response_object
from app.responses.create.mcp_servers import check_servers
from app.store.sealing import KEY_BYTES, BadSeal, SealedKind, Sealer, seal_headers, unseal_headers
from config.tools import McpServer
from tests.support.refusals import CODE, DOCS_URL, MCP, WEB
from tests.support.requests import parse_request

Json = dict[str, Any]

FUNCTION: Json = {"type": "function", "name": "f"}
ALL = [CODE, WEB, MCP, FUNCTION]


def parsed(**fields: Any) -> ResponseRequest:
    return parse_request(orjson.dumps({"model": "m", "input": "x", **fields}))


def stored(**fields: Any) -> Json:
    return parsed(**fields).stored("resp_1", {})


def error(**fields: Any) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        stored(**fields)
    return caught.value.error


class TestTools:
    def test_hosted_tools_are_stored_with_every_field(self) -> None:
        location = {"type": "approximate"}
        rule = {"always": {"tool_names": ["write"]}, "never": {"read_only": True}}
        mcp = {**MCP, "server_url": DOCS_URL, "server_description": "Docs.", "allowed_tools": ["read"]}
        kept = stored(tools=[CODE, {**WEB, "user_location": location}, {**mcp, "require_approval": rule}])["tools"]
        assert kept == [
            CODE,
            {**WEB, "search_context_size": "medium", "user_location": location, "filters": None},
            {
                **mcp,
                "require_approval": {
                    "always": {"tool_names": ["write"], "read_only": None},
                    "never": {"tool_names": None, "read_only": True},
                },
            },
        ]

    def test_an_mcp_tool_needs_approval_by_default(self) -> None:
        assert stored(tools=[MCP])["tools"] == [
            {
                **MCP,
                "server_url": None,
                "server_description": None,
                "allowed_tools": None,
                "require_approval": "always",
            }
        ]
        assert stored(tools=[{**MCP, "require_approval": "never"}])["tools"][0]["require_approval"] == "never"

    def test_a_filter_may_allow_tools(self) -> None:
        (kept,) = stored(tools=[{**MCP, "allowed_tools": {"read_only": True}}])["tools"]
        assert kept["allowed_tools"] == {"tool_names": None, "read_only": True}

    @pytest.mark.parametrize("kind", WEB_SEARCH.tool_types)
    def test_a_web_search_is_echoed_with_the_type_that_was_sent(self, kind: str) -> None:
        assert stored(tools=[{"type": kind, "search_context_size": "medium"}])["tools"][0]["type"] == kind

    def test_what_is_asked_of_a_search_is_stored(self) -> None:
        rome = {"city": "Rome", "country": "IT", "region": None, "timezone": None}
        filters = {"allowed_domains": ["a.example"], "blocked_domains": ["b.a.example"]}
        sent = {**WEB, "search_context_size": "high", "filters": filters, "user_location": rome}
        (kept,) = stored(tools=[sent])["tools"]
        location = {"type": "approximate", "city": "Rome", "country": "IT"}
        assert kept == {**WEB, "search_context_size": "high", "filters": filters, "user_location": location}
        (empty,) = stored(tools=[{**WEB, "filters": {"allowed_domains": []}}])["tools"]
        assert empty["filters"] is None

    def test_the_tools_of_the_agents_sdk_are_accepted(self) -> None:
        sent = {**WEB, "filters": None, "user_location": None, "search_context_size": "medium"}
        assert stored(tools=[sent])["tools"][0]["type"] == "web_search"

    def test_the_openai_package_reads_the_echo(self) -> None:
        rule = {"never": {"tool_names": ["read"]}}
        tools = [CODE, WEB, {**MCP, "allowed_tools": {"tool_names": ["read"]}, "require_approval": rule}]
        choice = {"type": "mcp", "server_label": "docs", "name": "read"}
        document = stored(tools=tools, tool_choice=choice)
        Response.model_validate(response_object(document, response_id="resp_1", created_at=1), strict=False)

    def test_a_search_that_must_not_access_the_web_is_refused_unless_it_was_left_out(self) -> None:
        assert error(tools=[{**WEB, "external_web_access": False}]).param == "tools[0].external_web_access"

    def test_there_may_be_several_mcp_servers(self) -> None:
        assert len(stored(tools=[MCP, {**MCP, "server_label": "wiki"}])["tools"]) == 2


class TestSecrets:
    SENT: ClassVar = [
        {**MCP, "authorization": "hunter2", "headers": {"X-Key": "hunter3"}},
        {**MCP, "server_label": "wiki", "headers": {"X-Key": "hunter4"}},
        {**MCP, "server_label": "open"},
    ]

    def test_secrets_are_headers_by_server_label(self) -> None:
        assert parsed(tools=self.SENT).secrets() == {
            "docs": {"Authorization": "Bearer hunter2", "X-Key": "hunter3"},
            "wiki": {"X-Key": "hunter4"},
        }

    def test_secrets_are_neither_stored_nor_shown(self) -> None:
        request = parsed(tools=self.SENT)
        document = request.stored("resp_1", {})
        assert b"hunter" not in orjson.dumps(document)
        assert b"hunter" not in orjson.dumps(response_object(document, response_id="resp_1", created_at=1))
        assert "hunter" not in repr(request.fields)

    def test_no_error_repeats_a_secret(self) -> None:
        found = error(tools=[{**MCP, "headers": {"X-Key": "hunter2\n"}}])
        assert "hunter2" not in found.message

    def test_sealed_secrets_open_only_as_secrets(self) -> None:
        seal = Sealer(bytes(KEY_BYTES - 1) + b"x")
        token = seal_headers(seal, {"X-Key": "hunter2"})
        assert "hunter2" not in token
        assert unseal_headers(seal, token) == {"X-Key": "hunter2"}
        with pytest.raises(BadSeal):
            seal.unseal(SealedKind.REASONING, token)


class TestChoice:
    @pytest.mark.parametrize(
        "choice",
        [
            {"type": "code_interpreter"},
            *({"type": kind} for kind in WEB_SEARCH.tool_types),
            {"type": "mcp", "server_label": "docs"},
            {"type": "mcp", "server_label": "docs", "name": "read"},
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "mcp", "server_label": "docs"}, {"type": "web_search_preview"}, FUNCTION],
            },
        ],
    )
    def test_choices_of_hosted_tools_are_stored(self, choice: Json) -> None:
        assert stored(tools=ALL, tool_choice=choice)["tool_choice"] == choice

    def test_it_may_be_required(self) -> None:
        assert stored(tools=[MCP], tool_choice="required")["tool_choice"] == "required"


def test_results_of_hosted_tools_may_be_included() -> None:
    wanted = ["code_interpreter_call.outputs", "web_search_call.action.sources"]
    assert stored(include=wanted)["include"] == wanted


SERVERS = (
    McpServer("sandbox", "python", "http://127.0.0.1:1/mcp"),
    McpServer("docs", "mcp", DOCS_URL),
    McpServer("wiki", "mcp", "https://wiki.example/mcp", request_headers=True),
)


def allowed(*tools: Json, servers: tuple[McpServer, ...] = SERVERS) -> None:
    check_servers(parsed(tools=list(tools)).fields.tools or (), servers)


def test_each_hosted_tool_has_a_kind_of_server() -> None:
    allowed(
        CODE, FUNCTION, MCP, {**MCP, "server_label": "sandbox"}, {**MCP, "server_label": "x", "server_url": DOCS_URL}
    )
    allowed(WEB, servers=(McpServer("web", "browser", DOCS_URL),))


def test_headers_are_accepted_for_servers_that_allow_them() -> None:
    allowed({**MCP, "server_label": "wiki", "headers": {"X-Key": "x"}, "authorization": "y"})


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        (WEB, "tools[1].type"),
        ({**MCP, "server_label": "other"}, "tools[1].server_label"),
        ({**MCP, "server_url": "http://169.254.169.254/latest/meta-data"}, "tools[1].server_url"),
        ({**MCP, "server_url": f"{DOCS_URL}/admin"}, "tools[1].server_url"),
        ({**MCP, "server_url": "http://docs.example/mcp"}, "tools[1].server_url"),
        ({**MCP, "server_url": "file:///etc/passwd"}, "tools[1].server_url"),
        ({**MCP, "headers": {"X-Key": "x"}}, "tools[1].headers"),
        ({**MCP, "authorization": "x"}, "tools[1].authorization"),
    ],
)
def test_a_server_that_the_operator_did_not_allow_is_refused_with_its_path(tool: Json, path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        allowed(FUNCTION, tool)
    found = caught.value.error
    assert (found.param, found.code) == (path, "tool_server_not_allowed")
    assert f"'{path}'" in found.message


GUARDED = (McpServer("docs", "mcp", DOCS_URL, require_approval=True),)


@pytest.mark.parametrize("rule", [None, "always"])
def test_an_operator_s_rule_of_approval_may_be_repeated(rule: str | None) -> None:
    allowed({**MCP, "require_approval": rule}, servers=GUARDED)


@pytest.mark.parametrize("rule", ["never", {"never": {"tool_names": ["read"]}}, {"always": {"read_only": True}}])
def test_no_request_has_less_approval_than_the_operator_demands(rule: Json | str) -> None:
    allowed({**MCP, "require_approval": rule})
    with pytest.raises(InvalidRequest) as caught:
        allowed({**MCP, "require_approval": rule}, servers=GUARDED)
    found = caught.value.error
    assert (found.param, found.code) == ("tools[0].require_approval", "tool_server_not_allowed")
    assert "send 'always'" in found.message
