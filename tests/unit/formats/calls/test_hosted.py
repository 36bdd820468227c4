"""Hosted tools in chat models: their names, the model's calls, and the calls in later prompts."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol import hosted_kinds
from app.protocol.events.deltas import (
    Approval,
    CallArguments,
    CallStart,
    CodeStart,
    CodeText,
    Delta,
    McpArguments,
    McpStart,
    Text,
    WholeCall,
)
from app.protocol.requests.items.hosted import McpCall
from tests.support.requests import message, stored_request
from tests.support.tool_servers import CODE_INTERPRETER, WEB_SEARCH, mcp_tool
from workers.engine.base import InvalidSampling
from workers.engine.output_format import ToolChoice
from workers.formats.answer import merge_deltas
from workers.formats.calls.browser import search_options
from workers.formats.calls.hosted import HostedCall, NameStyle, as_object
from workers.formats.calls.hosted_formats import hosted_tools_of
from workers.formats.calls.mcp import MCP as MCP_FORMAT
from workers.formats.calls.mcp import is_offered, needs_approval
from workers.formats.calls.router import CallableTools, CallRouter
from workers.formats.calls.tools import tools_of
from workers.formats.chat.messages import messages_of

Json = dict[str, Any]
LISTED = [{"name": "get.it", "description": "Gets it.", "input_schema": {"type": "object"}, "annotations": None}]
FUNCTION = {"type": "function", "name": "python", "parameters": None, "strict": None, "description": None}
TOOLS = [CODE_INTERPRETER, WEB_SEARCH, mcp_tool("my-box")]


def hosted(style: NameStyle = NameStyle.CHAT, *tools: Json, listed: Any = LISTED) -> dict[str, Any]:
    return hosted_tools_of(stored_request(tools=list(tools) or TOOLS), {"my-box": listed}, style)


# -- names and choices -----------------------------------------------------------------------------------------


def test_hosted_tools_are_functions_for_chat_models_and_namespaces_for_harmony() -> None:
    browser = ["search", "open", "find"]
    assert list(hosted()) == ["python", *(f"browser_{name}" for name in browser), "my-box__get_it"]
    assert list(hosted(NameStyle.HARMONY)) == ["python", *(f"browser.{name}" for name in browser), "my-box.get.it"]
    tool = hosted()["my-box__get_it"]
    assert (tool.kind, tool.server_label, tool.tool, tool.field) == ("mcp", "my-box", "get.it", "tools[2]")


def test_two_tools_that_would_have_one_name_are_refused() -> None:
    with pytest.raises(InvalidSampling, match=r"tools\[1\] and tools\[0\] would both be called 'python'"):
        hosted(NameStyle.CHAT, FUNCTION, CODE_INTERPRETER)
    assert "python" in hosted(NameStyle.HARMONY, FUNCTION, CODE_INTERPRETER)
    with pytest.raises(InvalidSampling, match="'my-box__a_b'"):
        hosted(NameStyle.CHAT, mcp_tool("my-box"), listed=[{**LISTED[0], "name": name} for name in ("a.b", "a_b")])


def test_a_chat_model_reads_the_description_of_a_server_with_its_first_tool() -> None:
    listed = [{**LISTED[0], "name": name} for name in ("a", "b")]
    request = stored_request(tools=[{**mcp_tool("my-box"), "server_description": "My box."}])
    for style, first in (
        (NameStyle.CHAT, "About the tools of my-box: My box.\n\nGets it."),
        (NameStyle.HARMONY, "Gets it."),
    ):
        made = tools_of(request, hosted_tools_of(request, {"my-box": listed}, style))
        assert [tool.description for tool in made.all] == [first, "Gets it."]


def chosen(choice: Any, *, later: bool = False, parallel: bool = True) -> tuple[ToolChoice, list[str], bool]:
    request = stored_request(
        tools=[*TOOLS, {**FUNCTION, "name": "f"}], tool_choice=choice, parallel_tool_calls=parallel
    )
    tools = tools_of(request, hosted_tools_of(request, {"my-box": LISTED}, NameStyle.CHAT), later=later)
    return tools.choice, [tool.name for tool in tools.allowed], tools.callable.single


BROWSER = [f"browser_{name}" for name in ("search", "open", "find")]
ALL = ["python", *BROWSER, "my-box__get_it", "f"]


def test_tool_choice_may_name_a_hosted_tool() -> None:
    assert chosen({"type": "code_interpreter"}) == (ToolChoice.NAMED, ["python"], True)
    assert chosen({"type": "web_search"}) == (ToolChoice.REQUIRED, BROWSER, False)
    assert chosen({"type": "mcp", "server_label": "my-box"}) == (ToolChoice.NAMED, ["my-box__get_it"], True)
    some = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "web_search"}, {"type": "function", "name": "f"}],
    }
    assert chosen(some) == (ToolChoice.AUTO, [*BROWSER, "f"], False)


def test_a_required_call_is_required_in_the_first_turn_only() -> None:
    assert chosen("required", later=True) == (ToolChoice.AUTO, ALL, False)
    assert chosen({"type": "code_interpreter"}, later=True) == (ToolChoice.AUTO, ALL, False)
    some = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "code_interpreter"}]}
    assert chosen(some, later=True) == (ToolChoice.AUTO, ["python"], False)


def test_a_choice_of_a_tool_that_is_not_offered_is_refused() -> None:
    with pytest.raises(InvalidSampling, match="tool_choice"):
        chosen({"type": "mcp", "server_label": "my-box", "name": "other"})


ALLOWED: list[tuple[Any, bool]] = [
    (None, True),
    (["t"], True),
    (["u"], False),
    ({"tool_names": ["t"], "read_only": None}, True),
    ({"tool_names": None, "read_only": True}, False),
    ({"tool_names": ["t"], "read_only": False}, True),
]
RULES: list[tuple[Any, bool]] = [
    (None, True),
    ("always", True),
    ("never", False),
    ({}, True),
    ({"never": {"tool_names": ["u"]}}, True),
    ({"never": {"tool_names": ["t"]}}, False),
    ({"never": {"read_only": True}}, False),
    ({"always": {"tool_names": ["u"]}}, False),
    ({"always": {"tool_names": ["t"]}, "never": {"read_only": True}}, True),
    ({"always": {"tool_names": ["u"]}, "never": {"tool_names": ["v"]}}, True),
]


def test_allowed_tools_are_names_or_a_filter() -> None:
    for allowed, offered in ALLOWED:
        assert is_offered({"allowed_tools": allowed}, {"name": "t", "annotations": None}) is offered, allowed


def test_approval_is_required_unless_the_request_says_otherwise() -> None:
    tool = {"name": "t", "annotations": {"readOnlyHint": True}}
    for rule, required in RULES:
        assert needs_approval({"require_approval": rule}, tool) is required, rule


# -- calls -----------------------------------------------------------------------------------------------------


def said(name: str, *arguments: str, cut: bool = False, approve: bool = False) -> tuple[list[Delta], list[HostedCall]]:
    tools = hosted(NameStyle.CHAT, *TOOLS[:2], mcp_tool("my-box", "always" if approve else "never"))
    calls = CallRouter(CallableTools(functions={"f"}, hosted=tools))
    deltas = calls.feed([CallStart(name), *map(CallArguments, arguments)])
    return [*merge_deltas([*deltas, *calls.flush(cut=cut)])], calls.hosted


@given(st.text(max_size=20), st.booleans(), st.data())
def test_code_comes_out_as_written(code: str, ascii_only: bool, data: st.DataObject) -> None:
    code = code.encode(errors="replace").decode()
    written = json.dumps({"code": code}, ensure_ascii=ascii_only)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=6)))
    deltas, calls = said("python", *(written[a:b] for a, b in pairwise([0, *cuts, len(written)]) if a < b))
    assert deltas == [CodeStart("python"), *([CodeText(code)] if code else [])]
    assert [call.arguments for call in calls] == [written]


def test_arguments_that_are_no_json_are_passed_on_as_they_come() -> None:
    assert said("python", "print(1)")[0] == [CodeStart("python"), CodeText("print(1)")]
    deltas, calls = said("my-box__get_it", '{"a"', ": 1}")
    assert deltas == [McpStart("my-box", "get.it"), McpArguments('{"a": 1}')]
    assert calls == [HostedCall("my-box__get_it", '{"a": 1}', "mcp", "my-box", "get.it")]


@pytest.mark.parametrize(
    ("tool", "arguments", "action"),
    [
        ("search", {"query": "q"}, {"type": "search", "query": "q", "queries": ["q"]}),
        ("open", {"id": 3, "cursor": 1}, {"type": "open_page", "url": None}),
        ("open", {"id": "https://example.test"}, {"type": "open_page", "url": "https://example.test"}),
        ("find", {"pattern": "p"}, {"type": "find_in_page", "pattern": "p", "url": ""}),
    ],
)
def test_a_browser_call_comes_out_once_it_is_complete(tool: str, arguments: Json, action: Json) -> None:
    written = json.dumps(arguments)
    deltas, calls = said(f"browser_{tool}", written[:4], written[4:])
    assert deltas == [WholeCall(hosted_kinds.WEB_SEARCH, f"browser_{tool}", written, {"action": action})]
    assert calls[0].tool == tool


def test_a_call_that_needs_approval_becomes_a_request_and_is_not_run_unless_it_cannot_be_run() -> None:
    assert said("my-box__get_it", '{"a": 1}', approve=True) == ([Approval("my-box", "get.it", '{"a": 1}')], [])
    deltas, calls = said("my-box__get_it", '{"a": ', approve=True)
    assert deltas == [McpStart("my-box", "get.it"), McpArguments('{"a": ')]
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["browser_search", "my-box__get_it"])
def test_a_cut_call_that_comes_out_complete_or_not_at_all_shows_nothing(name: str) -> None:
    assert said(name, '{"query": "x', cut=True, approve=True) == ([], [])


def test_one_call_too_many_ends_the_answer_after_the_call_before_it() -> None:
    calls = CallRouter(CallableTools(functions={"f"}, hosted=hosted(), single=True))
    first = [CallStart("browser_search"), CallArguments('{"query": "x"}')]
    deltas = calls.feed([*first, CallStart("f"), CallArguments("{}")])
    assert [type(delta) for delta in deltas] == [WholeCall]
    assert calls.ended
    assert len(calls.hosted) == 1


def test_a_call_of_an_unknown_name_is_a_call_of_an_unknown_tool() -> None:
    deltas, calls = said("my-box__other", "{}")
    assert deltas == [McpStart("my-box", "other"), McpArguments("{}")]
    assert calls == [HostedCall("my-box__other", "{}", None, "my-box", "other")]


def test_the_item_of_an_invented_name_can_be_sent_back_as_input() -> None:
    for name in ("rm", "__", "", "x y__z", "é" * 400):
        [start] = said(name)[0]
        assert isinstance(start, McpStart)
        item = {"type": "mcp_call", "server_label": start.server_label, "name": start.name, "arguments": ""}
        assert McpCall.model_validate(item).server_label == start.server_label


def test_without_hosted_tools_a_call_of_an_unknown_name_is_text() -> None:
    for arguments, end in (("{}", "}"), ("[" * 100_000, "")):
        calls = CallRouter(CallableTools(functions={"f"}))
        deltas = calls.feed([CallStart("g"), CallArguments(arguments)]) + calls.flush()
        assert merge_deltas(deltas) == (Text('{"name": "g", "arguments": ' + arguments + end),)


# -- calls in later prompts ------------------------------------------------------------------------------------


def ran(kind: str, turn: int | None = 1, call: Json | None = None, **fields: Any) -> Json:
    tool_results = {"call": {"result": "told", "arguments": "{}", "kind": "mcp", "turn": turn, **(call or {})}}
    return {
        "type": kind,
        "id": f"{kind}_{turn}",
        "status": "completed",
        **fields,
        **(tool_results if call is not None else {}),
    }


def mcp(turn: int | None, name: str = "t", call: Json | None = None, **fields: Any) -> Json:
    shown: Json = {"server_label": "s", "name": name, "arguments": "{}", "output": "shown", "error": None}
    return ran("mcp_call", turn, call, **{**shown, "approval_request_id": None, **fields})


def calls_and_results(items: list[Json]) -> list[Any]:
    """Messages by role: the names of calls, or the text of a result."""
    return [
        [call["function"]["name"] for call in made["tool_calls"]] if made.get("tool_calls") else made["content"]
        for made in messages_of([message("q"), *items])[1:]
    ]


def test_calls_of_one_turn_are_one_message_and_their_results_follow() -> None:
    items = [mcp(1, "a", {}), mcp(1, "b", {}), mcp(2, "c", {"result": "last"}), message("Done.", "assistant")]
    assert calls_and_results(items) == [["s__a", "s__b"], "told", "told", ["s__c"], "last", "Done."]


def test_a_client_s_call_of_the_same_turn_is_in_the_same_message() -> None:
    mine = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "mine"}
    assert calls_and_results([mcp(1, "a", {}), mine, output]) == [["s__a", "f"], "told", "mine"]


def test_without_kept_results_calls_are_rendered_from_what_their_items_show() -> None:
    error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]}
    items = [
        ran("code_interpreter_call", code="1", outputs=[{"type": "logs", "logs": "one"}]),
        ran("web_search_call", action={"type": "find_in_page", "pattern": "p", "url": "u"}),
        mcp(None),
        mcp(None, output=None, error={"type": "mcp_protocol_error", "code": 1, "message": "away"}),
        mcp(None, output=None, error=error),
    ]
    calls, *results = calls_and_results(items)
    assert calls == ["python", "browser_find", "s__t", "s__t", "s__t"]
    assert [result[:9] for result in results] == ["one", "There is ", "shown", "away", '[{"type":']


def test_a_call_with_approval_is_rendered_in_the_position_of_its_request() -> None:
    def asked(number: int) -> Json:
        return {"type": "mcp_approval_request", "id": f"r{number}", "server_label": "s", "name": "t", "arguments": "{}"}

    def answered(number: int, approve: bool) -> Json:
        said = {"approval_request_id": f"r{number}", "approve": approve, "reason": "No."}
        return {"type": "mcp_approval_response", "id": f"a{number}", **said}

    items = [asked(1), asked(2), asked(3), answered(1, False), answered(2, True), message("Go on.")]
    items.append(mcp(0, "t", {}, approval_request_id="r2"))
    shown = calls_and_results(items)
    assert shown == [["s__t", "s__t"], "The user did not allow this call. No.", "told", "Go on."]


def test_arguments_that_are_no_object_go_into_one_as_the_prompts_of_earlier_versions_have_them() -> None:
    assert as_object("née", ascii_only=True) == '{"arguments": "n\\u00e9e"}'
    assert as_object("née", ascii_only=False) == '{"arguments": "née"}'
    for ascii_only in (True, False):
        assert as_object('{"city":"née"}', ascii_only=ascii_only) == '{"city":"née"}'
    item = {"type": "mcp_call", "server_label": "docs", "name": "find", "arguments": "née"}
    assert MCP_FORMAT.shown_call(item, NameStyle.CHAT).text == '{"arguments": "n\\u00e9e"}'


def test_the_model_is_told_where_the_user_is() -> None:
    place = {"type": "approximate", "city": "Rome", "country": "IT"}
    request = stored_request(tools=[{**WEB_SEARCH, "user_location": place}])
    found = hosted_tools_of(request, {}, NameStyle.CHAT)
    assert (found["browser_search"].description or "").endswith("the user is approximately in Rome, IT.")
    assert "Rome" not in (found["browser_open"].description or "")


def test_a_browser_is_given_what_a_request_asks_of_its_searches() -> None:
    assert search_options([WEB_SEARCH]) == {} == search_options([])
    asked = {
        "search_context_size": "high",
        "filters": {"allowed_domains": ["a.example"]},
        "user_location": {"type": "approximate", "country": "IT"},
    }
    options = {"context_size": "high", "allowed_domains": ["a.example"], "country": "IT"}
    assert search_options([{**WEB_SEARCH, **asked}]) == options
