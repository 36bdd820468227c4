"""The client's tools in namespaces: the flat names that models know them by, and the way back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.events.deltas import CallArguments, CallStart, CustomInput, CustomStart, Delta, ToolSearch
from tests.support.requests import message, stored_request
from tests.unit.formats.calls.cases import prompt_of
from workers.engine.base import InvalidSampling
from workers.engine.output_format import ToolChoice
from workers.formats.calls.client_tools import ClientName, client_tools_of
from workers.formats.calls.hosted import MAX_NAME_CHARS, NameStyle
from workers.formats.calls.hosted_formats import hosted_tools_of
from workers.formats.calls.router import CallableTools, CallRouter
from workers.formats.calls.tools import Tools, tools_of

Json = dict[str, Any]


def function(name: str, **more: Any) -> Json:
    return {"type": "function", "name": name, "description": None, "parameters": None, "strict": None, **more}


def custom(name: str) -> Json:
    return {"type": "custom", "name": name, "description": "Runs it.", "format": {"type": "text"}}


def namespace(name: str, *tools: Json, about: str | None = None) -> Json:
    return {"type": "namespace", "name": name, "description": about, "tools": list(tools)}


AGENTS = namespace("agents", function("spawn", description="Starts one."), custom("sh"), about="Helpers.")
CRM = namespace("crm", function("spawn", strict=True))


def shown(*tools: Json, choice: Any = "auto") -> Tools:
    return tools_of(stored_request(tools=list(tools), tool_choice=choice))


def names(*tools: Json) -> list[str]:
    return [tool.name for tool in shown(*tools).all]


def test_the_model_is_shown_flat_names_in_the_order_of_the_request() -> None:
    made = shown(function("f"), AGENTS, function("g"), CRM)
    assert [tool.name for tool in made.all] == ["f", "agents__spawn", "agents__sh", "g", "crm__spawn"]
    assert [tool.field for tool in made.all][1:3] == ["tools[1].tools[0]", "tools[1].tools[1]"]
    assert [tool.strict for tool in made.all] == [False, False, False, False, True]
    assert made.callable.custom == {"agents__sh"}
    assert made.callable.functions == {"f", "g", "agents__spawn", "crm__spawn"}


def test_the_description_of_a_namespace_is_shown_with_its_first_tool() -> None:
    spawn, shell = (tool.as_function() for tool in shown(AGENTS).all)
    assert spawn["function"]["description"] == "About the tools of agents: Helpers.\n\nStarts one."
    assert shell["function"]["description"] == "Runs it."


def test_a_name_of_another_tool_is_never_taken() -> None:
    plain, nested, other = names(function("a__b"), namespace("a", function("b")), namespace("a__b", function("c")))
    assert plain == "a__b"
    assert nested.startswith("a__b_")
    assert other == "a__b__c"
    listing = {"docs": [{"name": "find", "description": None, "input_schema": None, "annotations": None}]}
    server = {"type": "mcp", "server_label": "docs", "allowed_tools": None, "require_approval": "never"}
    request = stored_request(tools=[namespace("docs", function("find")), server])
    made = tools_of(request, hosted_tools_of(request, listing, NameStyle.CHAT))
    assert len({tool.name for tool in made.all}) == 2
    assert "docs__find" in {tool.name for tool in made.all}


def test_a_long_name_is_cut_and_stays_unique() -> None:
    long = "n" * 100
    made = names(namespace(long, function("a"), function("b")), namespace(long + "x", function("a")))
    assert len(set(made)) == 3
    assert all(len(name) == MAX_NAME_CHARS for name in made)


@given(st.lists(st.tuples(st.text("ab_", min_size=1, max_size=4), st.text("ab_", min_size=1, max_size=4)), unique=True))
def test_names_are_unique_and_always_the_same(pairs: list[tuple[str, str]]) -> None:
    tools = [namespace(space, function(name)) for space, name in pairs] + [function("a__b"), function("a___b")]
    assert len(set(names(*tools))) == len(tools)
    assert names(*tools) == names(*tools)


def test_calls_of_tools_that_are_gone_keep_their_names() -> None:
    call = {"type": "function_call", "call_id": "c", "namespace": "agents", "name": "spawn", "arguments": "{}"}
    for tools in ([AGENTS], []):
        made = client_tools_of(stored_request(tools=tools), [message("x"), call])
        assert made.called_name(call) == "agents__spawn"
    assert made.called_name({**call, "namespace": None}) == "spawn"


def test_a_choice_names_the_namespace_before_a_dot() -> None:
    made = shown(AGENTS, CRM, choice={"type": "function", "name": "crm.spawn"})
    assert made.choice is ToolChoice.NAMED
    assert [tool.name for tool in made.allowed] == ["crm__spawn"]
    picked = [{"type": "custom", "name": "agents.sh"}, {"type": "function", "name": "crm.spawn"}]
    some = shown(AGENTS, CRM, choice={"type": "allowed_tools", "mode": "auto", "tools": picked})
    assert [tool.name for tool in some.allowed] == ["agents__sh", "crm__spawn"]
    assert some.closed


def test_a_call_has_its_own_name_and_its_namespace() -> None:
    deltas: list[Delta] = [CallStart("agents__spawn"), CallArguments("{}"), CallStart("agents__sh")]
    deltas += [CallArguments('{"input": "ls"}'), CallStart("f")]
    assert CallRouter(shown(function("f"), AGENTS).callable).feed(deltas) == [
        CallStart("spawn", "agents"),
        CallArguments("{}"),
        CustomStart("sh", "agents"),
        CustomInput("ls"),
        CallStart("f"),
    ]
    assert ClientName("agents", "spawn").qualified == "agents.spawn"


SEARCH: Json = {"type": "tool_search", "execution": "client", "description": None, "parameters": None}
LATER = function("late", defer_loading=True)
SEARCHED: Json = {"type": "tool_search_call", "id": "tsc_1", "call_id": "s", "arguments": {"query": "x"}}
FOUND: Json = {"type": "tool_search_output", "id": "tso_1", "call_id": "s", "tools": [namespace("n", LATER)]}


def with_items(items: list[Json], *tools: Json, choice: Any = "auto") -> Tools:
    request = stored_request(tools=list(tools), tool_choice=choice)
    return tools_of(request, client=client_tools_of(request, items))


def test_a_tool_that_loads_later_is_shown_once_a_search_found_it() -> None:
    own = [SEARCH, namespace("n", function("f"), LATER)]
    assert [tool.name for tool in with_items([], *own).all] == ["tool_search", "n__f"]
    assert [tool.name for tool in with_items([SEARCHED, FOUND], *own).all] == ["tool_search", "n__f", "n__late"]
    added = {"type": "additional_tools", "id": "at_1", "tools": [function("g"), LATER, SEARCH]}
    assert [tool.name for tool in with_items([added]).all] == ["g", "tool_search"]


def test_the_newest_definition_of_a_tool_is_shown_where_the_first_was() -> None:
    newer = {"type": "additional_tools", "id": "at_1", "tools": [function("f", description="New.")]}
    made = with_items([newer], function("f", description="Old."), function("g"))
    assert [(tool.name, tool.description) for tool in made.all] == [("f", "New."), ("g", None)]


def test_a_forced_call_of_a_tool_that_is_not_loaded_is_refused() -> None:
    choice = {"type": "function", "name": "late"}
    with pytest.raises(InvalidSampling, match="no search has loaded"):
        with_items([], SEARCH, LATER, choice=choice)


@pytest.mark.parametrize(
    ("pieces", "cut", "made"),
    [
        (['{"query": ', '"x"}'], False, [ToolSearch({"query": "x"})]),
        (["x"], False, [ToolSearch({"arguments": "x"})]),
        (['{"query": '], True, []),
        ([], True, []),
        ([], False, [ToolSearch({})]),
    ],
)
def test_a_search_is_one_delta_once_it_is_complete(pieces: list[str], cut: bool, made: list[Any]) -> None:
    calls = CallRouter(CallableTools(search=True))
    deltas = calls.feed([CallStart("tool_search"), *map(CallArguments, pieces)])
    assert [*deltas, *calls.flush(cut=cut)] == made


async def test_the_prompt_has_what_a_search_found_and_earlier_calls_by_the_names_that_the_model_used() -> None:
    call = {"type": "function_call", "call_id": "c", "namespace": "gone", "name": "f", "arguments": "{}"}
    answer = {"type": "function_call_output", "call_id": "c", "output": "done"}
    request = stored_request(tools=[SEARCH, AGENTS])
    prompt = await prompt_of(request, message("x"), SEARCHED, FOUND, call, answer)
    assert '{"name": "tool_search", "arguments": "{' in prompt
    assert "These tools can be called now: n__late." in prompt
    assert prompt.index('"name": "n__late"') < prompt.index("user")
    assert '"name": "gone__f"' in prompt
    assert '"name": "agents__spawn"' in prompt
