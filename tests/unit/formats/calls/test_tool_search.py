"""The server's tool search: what a query finds, and what the model is told."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.events.deltas import CallArguments, CallStart, ToolSearch
from tests.support.requests import stored_request
from tests.unit.formats.calls.cases import prompt_of
from workers.formats.calls.client_tools import ClientTools, client_tools_of
from workers.formats.calls.hosted import NameStyle
from workers.formats.calls.router import CallableTools, CallRouter
from workers.formats.calls.tool_search import MAX_FOUND, ToolIndex
from workers.formats.calls.tools import tools_of
from workers.formats.steps import Called, Returned, steps_of
from workers.formats.turn import PastTurn

Json = dict[str, Any]

SEARCH: Json = {"type": "tool_search", "execution": "server", "description": None, "parameters": None}


def late(name: str, description: str | None = None) -> Json:
    return {**FUNCTION, "name": name, "description": description}


FUNCTION: Json = {"type": "function", "parameters": None, "strict": None, "defer_loading": True}
WEATHER = late("get_weather", "The forecast for a city.")
INVOICE = late("createInvoice", "Bills a customer.")
MAIL: Json = {
    "type": "namespace",
    "name": "mail",
    "description": "Letters.",
    "tools": [late("send", "Sends one."), late("list_drafts")],
}
TOOLS = [SEARCH, WEATHER, INVOICE, MAIL]


def found(query: Any, *tools: Json) -> list[str]:
    """The names that a query finds, those in a namespace behind it."""
    deferred = client_tools_of(stored_request(tools=list(tools or TOOLS))).deferred
    entries = ToolIndex(deferred).search({"query": query})
    nested = [[f"{entry['name']}.{tool['name']}" for tool in entry.get("tools", ())] for entry in entries]
    return [name for entry, names in zip(entries, nested, strict=True) for name in names or [entry["name"]]]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("weather", ["get_weather"]),
        ("forecasts", ["get_weather"]),
        ("INVOICE", ["createInvoice"]),
        ("bill a customer", ["createInvoice", "get_weather"]),
        ("send mail", ["mail.send", "mail.list_drafts"]),
        ("letters", ["mail.send", "mail.list_drafts"]),
        ("xylophone", []),
        ("", []),
        (5, []),
    ],
)
def test_a_query_finds_tools_by_their_names_and_descriptions(query: Any, names: list[str]) -> None:
    assert found(query) == names


def test_a_name_says_more_than_a_description_and_a_few_of_many_are_found() -> None:
    assert found("pay", late("a", "Pay here, or there."), late("pay")) == ["pay", "a"]
    many = [f"tool_{index}" for index in range(50)]
    assert found("tool", *map(late, many)) == many[:MAX_FOUND]


def test_what_a_search_reads_of_a_long_query_is_bounded() -> None:
    assert found("get_weather " + "word " * 1_000_000) == ["get_weather"]
    assert found("word " * 1_000 + "get_weather") == []


def test_the_model_is_told_what_there_is_and_is_shown_none_of_it() -> None:
    made = tools_of(stored_request(tools=TOOLS))
    (tool,) = made.all
    assert tool.name == "tool_search"
    assert (tool.description or "").endswith("There are:\n- mail: Letters.\n- get_weather\n- createInvoice")
    assert made.callable.searched is not None and not made.callable.search


def test_a_call_of_the_search_has_what_it_found_unless_a_limit_cut_it() -> None:
    deferred = client_tools_of(stored_request(tools=TOOLS)).deferred
    for arguments, cut in (('{"query": "weather"}', False), ('{"query": "wea', True)):
        calls = CallRouter(CallableTools(searched=ToolIndex(deferred)))
        deltas = calls.feed([CallStart("tool_search"), CallArguments(arguments)])
        expected = [] if cut else [ToolSearch({"query": "weather"}, (WEATHER,))]
        assert [*deltas, *calls.flush(cut=cut)] == expected
        assert bool(calls.searched) is not cut


def searched(index: int, *tools: Json) -> list[Json]:
    own = {"call_id": None, "execution": "server", "status": "completed"}
    return [
        {"type": "tool_search_call", "id": f"tsc_{index}", "arguments": {"query": "x"}, **own},
        {"type": "tool_search_output", "id": f"tso_{index}", "tools": list(tools), **own},
    ]


def test_each_search_of_a_turn_has_its_own_result() -> None:
    items = [*searched(1, WEATHER), *searched(2)]
    assert list(steps_of(items, NameStyle.CHAT, ClientTools())) == [
        Called("tsc_1", "tool_search", '{"query": "x"}'),
        Returned("tsc_1", "tool_search", "These tools can be called now: get_weather."),
        Called("tsc_2", "tool_search", '{"query": "x"}'),
        Returned("tsc_2", "tool_search", "No tools were found."),
    ]


async def test_the_next_turn_is_shown_what_a_search_found() -> None:
    prompt = await prompt_of(stored_request(tools=TOOLS), past=[PastTurn((), tuple(searched(1, WEATHER)))])
    assert "These tools can be called now: get_weather." in prompt
    assert prompt.index('"name": "get_weather"') < prompt.index("user")
    assert '"name": "createInvoice"' not in prompt


def test_a_call_of_a_found_tool_has_its_name_as_its_namespace_as_openai_says_it() -> None:
    called = {"call_id": "c", "name": "get_weather", "namespace": "get_weather", "arguments": "{}"}
    items = [*searched(1, WEATHER, MAIL), {"type": "function_call", **called}]
    request = stored_request(tools=TOOLS)
    client = client_tools_of(request, items)
    calls = CallRouter(tools_of(request, client=client).callable)
    assert calls.feed([CallStart("get_weather")]) == [CallStart("get_weather", "get_weather")]
    assert calls.feed([CallStart("mail__send")])[-1] == CallStart("send", "mail")
    # Later prompts have the name that the model used.
    assert list(steps_of(items, NameStyle.CHAT, client))[-1] == Called("c", "get_weather", "{}")
