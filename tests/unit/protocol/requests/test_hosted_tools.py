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
from tests.support.requests import parse_request

Json = dict[str, Any]

CODE: Json = {"type": "code_interpreter", "container": {"type": "auto"}}
SEARCH: Json = {"type": "web_search"}
MCP: Json = {"type": "mcp", "server_label": "docs"}
FUNCTION: Json = {"type": "function", "name": "f"}
ALL = [CODE, SEARCH, MCP, FUNCTION]
URL = "https://docs.example/mcp"


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
        mcp = {**MCP, "server_url": URL, "server_description": "Docs.", "allowed_tools": ["read"]}
        kept = stored(tools=[CODE, {**SEARCH, "user_location": location}, {**mcp, "require_approval": rule}])["tools"]
        assert kept == [
            CODE,
            {**SEARCH, "search_context_size": "medium", "user_location": location, "filters": None},
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

    def test_the_tools_of_the_agents_sdk_are_accepted(self) -> None:
        sent = {**SEARCH, "filters": None, "user_location": None, "search_context_size": "medium"}
        assert stored(tools=[sent])["tools"][0]["type"] == "web_search"

    def test_the_openai_package_reads_the_echo(self) -> None:
        rule = {"never": {"tool_names": ["read"]}}
        tools = [CODE, SEARCH, {**MCP, "allowed_tools": {"tool_names": ["read"]}, "require_approval": rule}]
        choice = {"type": "mcp", "server_label": "docs", "name": "read"}
        document = stored(tools=tools, tool_choice=choice)
        Response.model_validate(response_object(document, response_id="resp_1", created_at=1), strict=False)

    FAULTS: ClassVar = [
        ({"type": "code_interpreter"}, "tools[0].container", "missing_required_parameter"),
        ({**CODE, "container": "cntr_1"}, "tools[0].container", "unsupported_parameter"),
        ({**CODE, "container": 5}, "tools[0].container", "invalid_type"),
        ({**CODE, "container": {"type": "own"}}, "tools[0].container.type", "invalid_value"),
        *(
            ({**CODE, "container": {"type": "auto", **more}}, f"tools[0].container.{name}", "unsupported_parameter")
            for name, more in (
                ("file_ids", {"file_ids": ["f"]}),
                ("memory_limit", {"memory_limit": "4g"}),
                ("network_policy", {"network_policy": {"type": "disabled"}}),
            )
        ),
        ({**CODE, "allowed_callers": ["programmatic"]}, "tools[0].allowed_callers", "unsupported_parameter"),
        ({**SEARCH, "search_context_size": "high"}, "tools[0].search_context_size", "unsupported_parameter"),
        (
            {**SEARCH, "filters": {"allowed_domains": ["a.example"]}},
            "tools[0].filters.allowed_domains",
            "unsupported_parameter",
        ),
        (
            {**SEARCH, "user_location": {"type": "approximate", "city": "Rome"}},
            "tools[0].user_location.city",
            "unsupported_parameter",
        ),
        ({**SEARCH, "external_web_access": False}, "tools[0].external_web_access", "unsupported_parameter"),
        ({**SEARCH, "search_content_types": ["image"]}, "tools[0].search_content_types", "unsupported_parameter"),
        ({"type": "web_search_preview", "filters": {}}, "tools[0].filters", "unknown_parameter"),
        ({"type": "mcp"}, "tools[0].server_label", "missing_required_parameter"),
        ({**MCP, "server_label": "a b"}, "tools[0].server_label", "invalid_value"),
        ({**MCP, "server_url": 5}, "tools[0].server_url", "invalid_type"),
        ({**MCP, "connector_id": "connector_gmail"}, "tools[0].connector_id", "unsupported_parameter"),
        ({**MCP, "tunnel_id": "t"}, "tools[0].tunnel_id", "unsupported_parameter"),
        ({**MCP, "defer_loading": True}, "tools[0].defer_loading", "unsupported_parameter"),
        ({**MCP, "require_approval": "sometimes"}, "tools[0].require_approval", "invalid_value"),
        ({**MCP, "require_approval": ["a"]}, "tools[0].require_approval", "invalid_type"),
        ({**MCP, "require_approval": {"maybe": {}}}, "tools[0].require_approval.maybe", "unknown_parameter"),
        ({**MCP, "require_approval": {"never": ["a"]}}, "tools[0].require_approval.never", "invalid_type"),
        ({**MCP, "allowed_tools": "read"}, "tools[0].allowed_tools", "invalid_type"),
        ({**MCP, "allowed_tools": [5]}, "tools[0].allowed_tools[0]", "invalid_type"),
        ({**MCP, "headers": {"a b": "x"}}, "tools[0].headers['a b']", "invalid_value"),
        ({**MCP, "headers": {"Host": "evil.example"}}, "tools[0].headers.Host", "invalid_value"),
        ({**MCP, "headers": {"Mcp-Session-Id": "x"}}, "tools[0].headers.Mcp-Session-Id", "invalid_value"),
        ({**MCP, "headers": {"X-A": "a\r\nX-B: b"}}, "tools[0].headers.X-A", "invalid_value"),
        ({**MCP, "headers": {"X-A": "a", "x-a": "b"}}, "tools[0].headers", "invalid_value"),
        (
            {**MCP, "headers": {"authorization": "x"}, "authorization": "y"},
            "tools[0].authorization",
            "mutually_exclusive_parameters",
        ),
    ]

    @pytest.mark.parametrize(("tool", "path", "code"), FAULTS)
    def test_the_field_at_fault_is_named(self, tool: Any, path: str, code: str) -> None:
        found = error(tools=[tool])
        assert (found.param, found.code) == (path, code)
        assert f"'{path}'" in found.message

    @pytest.mark.parametrize(
        "tools",
        [
            [CODE, CODE],
            [SEARCH, {"type": "web_search_preview"}],
            [MCP, {**MCP, "server_url": URL}],
        ],
    )
    def test_a_hosted_tool_is_there_only_once(self, tools: list[Json]) -> None:
        found = error(tools=tools)
        assert (found.param, found.code) == ("tools", "invalid_value")

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

    FAULTS: ClassVar = [
        ({"type": "code_interpreter"}, [SEARCH], "tool_choice.type"),
        ({"type": "web_search"}, [CODE], "tool_choice.type"),
        ({"type": "mcp", "server_label": "wiki"}, [MCP], "tool_choice.server_label"),
        (
            {"type": "mcp", "server_label": "docs", "name": "write"},
            [{**MCP, "allowed_tools": ["read"]}],
            "tool_choice.server_label",
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION, {"type": "code_interpreter"}]},
            [FUNCTION],
            "tool_choice.tools[1].type",
        ),
        ({"type": "function", "name": "docs"}, [MCP], "tool_choice.name"),
    ]

    @pytest.mark.parametrize(("choice", "tools", "path"), FAULTS)
    def test_a_choice_of_a_missing_tool_is_refused(self, choice: Json, tools: list[Json], path: str) -> None:
        found = error(tools=tools, tool_choice=choice)
        assert (found.param, found.code) == (path, "invalid_value")
        assert f"'{path}'" in found.message

    def test_it_may_be_required(self) -> None:
        assert stored(tools=[MCP], tool_choice="required")["tool_choice"] == "required"


def test_results_of_hosted_tools_may_be_included() -> None:
    wanted = ["code_interpreter_call.outputs", "web_search_call.action.sources"]
    assert stored(include=wanted)["include"] == wanted


SERVERS = (
    McpServer("sandbox", "python", "http://127.0.0.1:1/mcp"),
    McpServer("docs", "mcp", URL),
    McpServer("wiki", "mcp", "https://wiki.example/mcp", request_headers=True),
)


def allowed(*tools: Json, servers: tuple[McpServer, ...] = SERVERS) -> None:
    check_servers(parsed(tools=list(tools)).fields.tools or (), servers)


def test_each_hosted_tool_has_a_kind_of_server() -> None:
    allowed(CODE, FUNCTION, MCP, {**MCP, "server_label": "sandbox"}, {**MCP, "server_label": "x", "server_url": URL})
    allowed(SEARCH, servers=(McpServer("web", "browser", URL),))


def test_headers_are_accepted_for_servers_that_allow_them() -> None:
    allowed({**MCP, "server_label": "wiki", "headers": {"X-Key": "x"}, "authorization": "y"})


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        (SEARCH, "tools[1].type"),
        ({**MCP, "server_label": "other"}, "tools[1].server_label"),
        ({**MCP, "server_url": "http://169.254.169.254/latest/meta-data"}, "tools[1].server_url"),
        ({**MCP, "server_url": f"{URL}/admin"}, "tools[1].server_url"),
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


GUARDED = (McpServer("docs", "mcp", URL, require_approval=True),)


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
