"""`tools` and `tool_choice`: the tools that the model is shown, and those that it may call."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.requests import stored_request
from tests.unit.formats.calls.cases import prompt_of
from workers.engine.base import InvalidSampling
from workers.engine.output_format import ToolChoice
from workers.formats.calls.string_argument import CUSTOM_TOOL_PARAMETERS
from workers.formats.calls.tools import Tools, output_spec_of, tools_of

Json = dict[str, Any]

WEATHER: Json = {
    "type": "function",
    "name": "weather",
    "description": "How it is.",
    "parameters": {"type": "object"},
    "strict": True,
}
SEARCH: Json = {"type": "function", "name": "search", "description": None, "parameters": None, "strict": None}
SHELL: Json = {"type": "custom", "name": "shell", "description": "Runs it.", "format": {"type": "text"}}
SUM: Json = {
    "type": "custom",
    "name": "sum",
    "description": None,
    "format": {"type": "grammar", "syntax": "regex", "definition": r"\d\+\d"},
}
ALL = [WEATHER, SEARCH, SHELL, SUM]


def tools(choice: Any, parallel: bool = True, of: list[Json] = ALL) -> Tools:
    return tools_of(stored_request(tools=of, tool_choice=choice, parallel_tool_calls=parallel))


def allowed(mode: str, *names: str) -> Json:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}


CHOICES: list[tuple[Any, ToolChoice, list[str]]] = [
    *((each.value, each, ["weather", "search", "shell", "sum"]) for each in (ToolChoice.AUTO, ToolChoice.REQUIRED)),
    ({"type": "function", "name": "search"}, ToolChoice.NAMED, ["search"]),
    ({"type": "custom", "name": "shell"}, ToolChoice.NAMED, ["shell"]),
    (allowed("auto", "search", "shell"), ToolChoice.AUTO, ["search", "shell"]),
    (allowed("required", "weather"), ToolChoice.REQUIRED, ["weather"]),
]


def test_tool_choice_limits_the_tools_that_may_be_called() -> None:
    for said, choice, names in CHOICES:
        made = tools(said)
        assert made.choice is choice
        assert [tool.name for tool in made.allowed] == names
        assert [tool.name for tool in made.all] == ["weather", "search", "shell", "sum"]
        assert {*made.callable.functions, *made.callable.custom} == set(names)
        assert {"shell", "sum"}.issuperset(made.callable.custom)
        assert made.callable.single is (choice is ToolChoice.NAMED)
        assert made.closed is (isinstance(said, dict) and said["type"] == "allowed_tools")
    assert tools("auto", parallel=False).callable.single
    for none in (tools("none"), tools("auto", of=[])):
        assert (none.choice, none.all, none.allowed) == (ToolChoice.NONE, (), ())


def test_a_custom_tool_is_shown_as_a_function_with_one_string() -> None:
    weather, search, shell, total = (tool.as_function() for tool in tools("auto").all)
    assert weather == {
        "type": "function",
        "function": {"name": "weather", "description": "How it is.", "parameters": {"type": "object"}},
    }
    assert search == {"type": "function", "function": {"name": "search"}}
    assert shell["function"] == {"name": "shell", "description": "Runs it.", "parameters": CUSTOM_TOOL_PARAMETERS}
    assert r"\d\+\d" in total["function"]["description"]


def test_a_tool_knows_its_position_in_the_request() -> None:
    assert [tool.field for tool in tools("auto").all] == ["tools[0]", "tools[1]", "tools[2]", "tools[3]"]
    assert [tool.strict for tool in tools("auto").all] == [True, False, False, True]
    assert tools("auto").all[3].grammar == ("regex", r"\d\+\d")


def test_the_output_spec_has_what_the_request_asks_of_its_output() -> None:
    extra = {"stop_token_ids": [3, 4], "skip_special_tokens": False}
    request = stored_request(tools=ALL, tool_choice=allowed("auto", "search"), extra=extra)
    spec = output_spec_of(request, tools_of(request), {"enable_thinking": True})
    assert (spec.choice, spec.closed, spec.single) == (ToolChoice.AUTO, True, False)
    assert spec.stop_tokens == (3, 4)
    assert spec.special_tokens
    assert spec.template_args == {"enable_thinking": True}
    shown_stop = output_spec_of(
        {**request, "extra": {**extra, "include_stop_str_in_output": True}}, tools_of(request), {}
    )
    assert shown_stop.stop_tokens == ()


async def test_a_tool_that_no_grammar_can_forbid_is_not_shown() -> None:
    prompt = await prompt_of(stored_request(tools=ALL, tool_choice=allowed("auto", "search")))
    assert '"search"' in prompt
    assert '"weather"' not in prompt


async def test_what_the_model_cannot_be_shown_is_refused() -> None:
    item = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "f", "arguments": "{}"}
    with pytest.raises(InvalidSampling, match="'input' holds nothing"):
        await prompt_of(stored_request(), item)
    for field in ("enable_response_messages", "previous_input_messages"):
        with pytest.raises(InvalidSampling, match=f"^Invalid '{field}': .* does not speak harmony"):
            await prompt_of(stored_request(**{field: [{"role": "user", "content": "x"}]}))
