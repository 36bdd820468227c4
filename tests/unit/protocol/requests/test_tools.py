"""`tools`, `tool_choice`, `text` and `reasoning`, and what a request asks of its model."""

from __future__ import annotations

from typing import Any, get_args

import orjson
import pytest
from openai.types.responses import ToolChoiceTypesParam, ToolParam
from pydantic import TypeAdapter

from app.protocol.errors import ErrorObject, InvalidRequest
from app.protocol.hosted_kinds import KIND_OF_TOOL
from app.protocol.local_kinds import LOCAL_TOOLS
from app.protocol.requests.bodies.conversation import CreateItems
from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.protocol.requests.capabilities import Capabilities, check_capabilities
from app.protocol.requests.items.any_item import stored_items
from app.protocol.requests.tools.any_tool import UNSUPPORTED_TOOLS
from app.protocol.requests.tools.choice import UNSUPPORTED_CHOICES
from app.protocol.requests.tools.omitted import omit_tools
from app.protocol.requests.validation import validate
from app.protocol.response import response_object
from config.settings import ConfigError, OmittableTool, load_settings
from tests.support.refusals import ADDED, CALL, CUSTOM, FOUND, FUNCTION, LATER, NAMESPACE, SCHEMA, SEARCH, SEARCHED
from tests.support.requests import parse_request

Json = dict[str, Any]

BOTH = [FUNCTION, CUSTOM]


def stored(**fields: Any) -> Json:
    return parse_request(orjson.dumps({"model": "m", "input": "x", **fields})).stored("resp_1", {})


def error(**fields: Any) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        stored(**fields)
    return caught.value.error


class TestTools:
    def test_a_function_is_kept_with_every_field(self) -> None:
        assert stored(tools=[FUNCTION])["tools"] == [{**FUNCTION, "description": None}]
        plain = {"type": "function", "name": "g", "description": "Does.", "parameters": None, "strict": None}
        assert stored(tools=[plain])["tools"] == [plain]
        assert stored(tools=[{"type": "function", "name": "g", "description": "Does."}])["tools"] == [plain]

    @pytest.mark.parametrize(
        "shape",
        [
            {"type": "text"},
            {"type": "grammar", "syntax": "lark", "definition": "start: /a/"},
            {"type": "grammar", "syntax": "regex", "definition": "a+"},
        ],
    )
    def test_a_custom_tool_is_kept_with_its_format(self, shape: Json) -> None:
        kept = stored(tools=[{**CUSTOM, "format": shape}])["tools"]
        assert kept == [{**CUSTOM, "description": None, "format": shape}]

    def test_a_custom_tools_format_is_text_by_default(self) -> None:
        assert stored(tools=[CUSTOM])["tools"][0]["format"] == {"type": "text"}

    def test_the_list_of_tools_is_that_of_the_openai_package(self) -> None:
        assert kinds_of(ToolParam) == UNSUPPORTED_TOOLS | {
            "function",
            "custom",
            "namespace",
            "tool_search",
            *LOCAL_TOOLS,
            *KIND_OF_TOOL,
        }

    @pytest.mark.parametrize("name", ["fs.read_file", "a.b.c", "mcp__echo.say-it", "."])
    def test_names_may_have_dots(self, name: str) -> None:
        (tool,) = stored(tools=[{**FUNCTION, "name": name}], tool_choice={"type": "function", "name": name})["tools"]
        assert tool["name"] == name


class TestNamespaces:
    def test_a_namespace_is_kept_with_its_tools(self) -> None:
        (kept,) = stored(tools=[NAMESPACE])["tools"]
        inner = [{**FUNCTION, "description": None}, {**CUSTOM, "description": None, "format": {"type": "text"}}]
        assert kept == {**NAMESPACE, "tools": inner}

    def test_names_are_unique_per_namespace_only(self) -> None:
        kept = stored(tools=[FUNCTION, NAMESPACE, {**NAMESPACE, "name": "f"}])["tools"]
        assert [tool["name"] for tool in kept] == ["f", "n", "f"]
        assert error(tools=[NAMESPACE, NAMESPACE]).param == "tools"
        assert error(tools=[{**NAMESPACE, "tools": [FUNCTION, FUNCTION]}]).param == "tools[0].tools"

    @pytest.mark.parametrize("choice", [{"type": "function", "name": "n.f"}, {"type": "custom", "name": "n.sql"}])
    def test_a_choice_names_the_namespace_before_a_dot(self, choice: Json) -> None:
        assert stored(tools=[NAMESPACE], tool_choice=choice)["tool_choice"] == choice
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
        assert stored(tools=[NAMESPACE], tool_choice=allowed)["tool_choice"] == allowed

    def test_calls_keep_their_namespace_and_outputs_need_none(self) -> None:
        call = {**CALL, "namespace": "n"}
        output = {"type": "function_call_output", "call_id": "c", "output": "x", "namespace": "n"}
        written = {"type": "custom_tool_call", "call_id": "d", "name": "sql", "namespace": "n", "input": "x"}
        kept = stored(input=[call, output, written])["input"]
        assert [item.get("namespace") for item in kept] == ["n", None, "n"]


class TestToolsThatLoadLater:
    def test_the_clients_search_is_kept(self) -> None:
        assert stored(tools=[SEARCH])["tools"] == [SEARCH]
        assert stored(tools=[SEARCH, LATER])["tools"][1] == {**LATER, "description": None}

    def test_items_that_bring_tools_are_kept(self) -> None:
        call, found, added = stored(input=[SEARCHED, FOUND, ADDED])["input"]
        assert call == {**SEARCHED, "id": "tsc_1_in0", "status": "completed"}
        assert (found["id"], found["execution"]) == ("tso_1_in1", "client")
        assert found["tools"][0]["tools"] == [{**LATER, "description": None}]
        assert (added["id"], added["role"]) == ("at_1_in2", "developer")
        assert [tool["type"] for tool in added["tools"]] == ["function", "tool_search"]

    def test_a_choice_may_name_a_tool_of_an_item(self) -> None:
        for name in ("n.late", "f"):
            choice = {"type": "function", "name": name}
            assert stored(input=[SEARCHED, FOUND, ADDED], tool_choice=choice)["tool_choice"] == choice

    def test_a_model_without_tools_refuses_items_that_bring_some(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            check_capabilities(stored(input=[ADDED]), PLAIN)
        assert caught.value.error.param == "input[0].tools"

    def test_tools_of_items_are_left_out_too(self) -> None:
        request = without({"web_search"}, input=[{**ADDED, "tools": [WEB, FUNCTION]}]).stored("r_1", {})
        assert request["omitted_tools"] == ["web_search"]
        assert [tool["type"] for tool in request["input"][0]["tools"]] == ["function"]
        found = without({"web_search"}, input=[SEARCHED, {**FOUND, "tools": [WEB, FUNCTION]}]).stored("r_1", {})
        assert [tool["type"] for tool in found["input"][1]["tools"]] == ["function"]
        sent = omit_tools({"items": [{**ADDED, "tools": [WEB, FUNCTION]}]}, {"web_search"})
        (item,) = stored_items(validate(CreateItems, sent).items, "1")
        assert [tool["type"] for tool in item["tools"]] == ["function"]


WEB: Json = {"type": "web_search", "external_web_access": False, "search_content_types": ["text", "image"]}


def without(omitted: set[str], **fields: Any) -> ResponseRequest:
    return checked_request(omit_tools({"model": "m", "input": "x", **fields}, omitted))


def test_the_schema_of_what_a_function_returns_is_kept_and_shown() -> None:
    returns = {"type": "object", "properties": {"celsius": {"type": "number"}}}
    (kept,) = stored(tools=[{**FUNCTION, "output_schema": returns}])["tools"]
    assert kept["output_schema"] == returns
    assert "output_schema" not in stored(tools=[FUNCTION])["tools"][0]


class TestLocalTools:
    def test_they_are_stored_with_every_field(self) -> None:
        skill = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
        shell = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
        others = [{"type": "apply_patch"}, {"type": "local_shell"}]
        assert stored(tools=[shell, *others])["tools"] == [shell, *others]

    def test_a_shell_is_the_clients_unless_it_says_otherwise(self) -> None:
        (kept,) = stored(tools=[{"type": "shell"}])["tools"]
        assert kept == {"type": "shell", "environment": {"type": "local"}}

    @pytest.mark.parametrize("kind", sorted(LOCAL_TOOLS))
    def test_they_can_be_chosen(self, kind: str) -> None:
        choice = {"type": kind}
        assert stored(tools=[{"type": kind}], tool_choice=choice)["tool_choice"] == choice
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
        assert stored(tools=[{"type": kind}], tool_choice=allowed)["tool_choice"] == allowed

    def test_a_container_is_refused_with_what_to_do(self) -> None:
        found = error(tools=[{"type": "shell", "environment": {"type": "container_auto"}}])
        assert "Send {'type': 'local'} and run the commands yourself" in found.message


def test_a_tool_search_is_the_servers_unless_it_says_otherwise() -> None:
    late = {**FUNCTION, "name": "late", "defer_loading": True}
    for sent in ({"type": "tool_search"}, {"type": "tool_search", "execution": "server", "description": None}):
        search, kept = stored(tools=[sent, late])["tools"]
        assert search == {"type": "tool_search", "execution": "server", "description": None, "parameters": None}
        assert kept["defer_loading"] is True


class TestOmittedTools:
    def test_a_tool_is_left_out_with_all_its_fields_and_named(self) -> None:
        kept = without({"web_search"}, tools=[FUNCTION, WEB, {"type": "web_search_preview", "x": 1}]).stored("r", {})
        assert [tool["type"] for tool in kept["tools"]] == ["function"]
        assert kept["omitted_tools"] == ["web_search", "web_search_preview"]
        assert response_object(kept, response_id="r", created_at=1)["omitted_tools"] == kept["omitted_tools"]

    @pytest.mark.parametrize("kind", ["web_search", "web_search_2025_08_26"])
    def test_a_search_that_must_not_access_the_web_is_left_out_without_any_setting(self, kind: str) -> None:
        offline = {**WEB, "type": kind}
        kept = without(set(), tools=[FUNCTION, offline]).stored("r", {})
        assert [tool["type"] for tool in kept["tools"]] == ["function"]
        assert kept["omitted_tools"] == [kind]
        added = without(set(), input=[{**ADDED, "tools": [offline]}]).stored("r", {})
        assert added["omitted_tools"] == [kind]
        with pytest.raises(InvalidRequest, match="leaves out") as caught:
            without(set(), tools=[offline], tool_choice={"type": "web_search"})
        assert (caught.value.error.param, caught.value.error.code) == ("tool_choice.type", "tool_omitted")

    def test_a_search_of_an_index_is_left_out_because_there_is_none(self) -> None:
        indexed = {"type": "web_search", "external_web_access": True, "indexed_web_access": True}
        assert without(set(), tools=[FUNCTION, indexed]).stored("r", {})["omitted_tools"] == ["web_search"]
        live = {**indexed, "indexed_web_access": False}
        assert without(set(), tools=[FUNCTION, live]).stored("r", {})["omitted_tools"] == []

    @pytest.mark.parametrize("access", [True, None])
    def test_a_search_that_may_access_the_web_is_not_left_out(self, access: bool | None) -> None:
        kept = without(set(), tools=[{"type": "web_search", "external_web_access": access}]).stored("r", {})
        assert ([tool["type"] for tool in kept["tools"]], kept["omitted_tools"]) == (["web_search"], [])

    def test_a_response_without_omitted_tools_does_not_name_any(self) -> None:
        assert "omitted_tools" not in response_object(stored(tools=[FUNCTION]), response_id="r", created_at=1)

    def test_tools_of_other_types_are_refused_as_before_in_their_own_positions(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            without({"web_search"}, tools=[WEB, {"type": "image_generation"}])
        assert caught.value.error.param == "tools[1].type"

    @pytest.mark.parametrize("kind", sorted({*UNSUPPORTED_TOOLS, *LOCAL_TOOLS}))
    def test_unsupported_types_can_be_left_out(self, kind: str) -> None:
        assert without({kind}, tools=[{"type": kind, "anything": {}}]).stored("r", {})["omitted_tools"] == [kind]

    @pytest.mark.parametrize(
        ("choice", "path"),
        [
            ({"type": "web_search"}, "tool_choice.type"),
            (
                {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search_preview"}]},
                "tool_choice.tools[0].type",
            ),
        ],
    )
    def test_a_choice_of_an_omitted_tool_is_refused(self, choice: Json, path: str) -> None:
        with pytest.raises(InvalidRequest, match="leaves out") as caught:
            without({"web_search"}, tools=[FUNCTION, WEB], tool_choice=choice)
        assert (caught.value.error.param, caught.value.error.code) == (path, "tool_omitted")

    def test_a_required_call_needs_a_tool_that_is_not_left_out(self) -> None:
        with pytest.raises(InvalidRequest, match="leaves out all"):
            without({"web_search"}, tools=[WEB], tool_choice="required")

    def test_the_fingerprint_is_that_of_what_the_client_sent(self) -> None:
        assert without({"web_search"}, tools=[WEB]).fingerprint() != without({"web_search"}).fingerprint()
        sent = {"type": "web_search"}
        assert without({"web_search"}, tools=[sent]).fingerprint() == without(set(), tools=[sent]).fingerprint()

    def test_the_setting_knows_every_type(self) -> None:
        assert set(get_args(OmittableTool)) == UNSUPPORTED_TOOLS | {"web_search", "code_interpreter", *LOCAL_TOOLS}
        settings = load_settings(omit_tools="web_search, shell")
        assert settings.omit_tools == {"web_search", "shell"}
        with pytest.raises(ConfigError, match="LONGHAUL_OMIT_TOOLS"):
            load_settings(omit_tools="function")


class TestChoice:
    @pytest.mark.parametrize(
        "choice",
        [
            *("none", "auto", "required"),
            {"type": "function", "name": "f"},
            {"type": "custom", "name": "sql"},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "sql"}]},
        ],
    )
    def test_every_form_is_kept(self, choice: Any) -> None:
        assert stored(tools=BOTH, tool_choice=choice)["tool_choice"] == choice

    def test_the_list_of_choices_is_that_of_the_openai_package(self) -> None:
        assert kinds_of(ToolChoiceTypesParam) <= UNSUPPORTED_CHOICES | set(KIND_OF_TOOL)


class TestText:
    @pytest.mark.parametrize("sent", [None, {}, {"format": None}, {"format": {"type": "text"}, "verbosity": None}])
    def test_plain_text_is_the_default(self, sent: Any) -> None:
        assert stored(text=sent)["text"] == {"format": {"type": "text"}}

    def test_json_objects(self) -> None:
        assert stored(text={"format": {"type": "json_object"}})["text"] == {"format": {"type": "json_object"}}

    def test_json_schemas(self) -> None:
        sent = {"type": "json_schema", "name": "n", "schema": SCHEMA}
        kept = stored(text={"format": sent, "verbosity": "low"})["text"]
        assert kept == {"format": {**sent, "strict": False, "description": None}, "verbosity": "low"}
        assert stored(text={"format": {**sent, "strict": True}})["text"]["format"]["strict"] is True


class TestReasoning:
    @pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
    def test_every_effort_is_kept(self, effort: str) -> None:
        assert stored(reasoning={"effort": effort})["reasoning"] == {"effort": effort, "summary": None}

    @pytest.mark.parametrize("name", ["summary", "generate_summary"])
    @pytest.mark.parametrize("summary", ["auto", "concise", "detailed"])
    def test_a_summary_is_stored_under_its_name_of_today(self, name: str, summary: str) -> None:
        assert stored(reasoning={name: summary})["reasoning"] == {"effort": None, "summary": summary}

    @pytest.mark.parametrize("context", ["auto", "current_turn", "all_turns"])
    def test_a_context_is_stored_only_if_it_was_sent(self, context: str) -> None:
        assert stored(reasoning={"context": context})["reasoning"]["context"] == context
        assert "context" not in stored(reasoning={"context": None})["reasoning"]

    def test_two_names_must_ask_for_the_same_summary(self) -> None:
        stored(reasoning={"summary": "auto", "generate_summary": "auto"})
        found = error(reasoning={"summary": "auto", "generate_summary": "concise"})
        assert (found.param, found.code) == ("reasoning.generate_summary", "mutually_exclusive_parameters")

    def test_the_effort_of_open_webui_is_the_effort_of_reasoning(self) -> None:
        assert stored(reasoning_effort="low") == stored(reasoning={"effort": "low"})
        both = {"reasoning": {"effort": "low", "summary": "auto"}}
        assert stored(reasoning_effort="low", reasoning={"summary": "auto"}) == stored(**both)
        assert stored(reasoning_effort="low", **both) == stored(**both)

    def test_two_names_must_ask_for_the_same_effort(self) -> None:
        found = error(reasoning_effort="low", reasoning={"effort": "high"})
        assert (found.param, found.code) == ("reasoning_effort", "mutually_exclusive_parameters")

    def test_reasoning_is_stored_only_if_it_was_sent(self) -> None:
        assert stored()["reasoning"] is None
        assert stored(reasoning={})["reasoning"] == {"effort": None, "summary": None}


ABLE = Capabilities(images=True, tools=True, reasoning=True, verbosity=True, fetches_images=True)
HARMONY = Capabilities(images=False, tools=True, reasoning=True, verbosity=True, harmony=True)
PLAIN = Capabilities(images=False, tools=False, reasoning=False, verbosity=False)
IMAGE = {"type": "input_image", "image_url": "https://example.com/a.png"}
TEXT = {"type": "input_text", "text": "x"}
NEEDS = [
    ({"input": [{"role": "user", "content": [TEXT, IMAGE]}]}, "input[0].content[1]"),
    (
        {"input": [CALL, {"type": "function_call_output", "call_id": "c", "output": [IMAGE]}]},
        "input[1].output[0]",
    ),
    ({"tools": BOTH}, "tools"),
    ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
]


@pytest.mark.parametrize(("sent", "path"), NEEDS)
def test_a_field_that_the_model_cannot_honour_is_refused_with_its_path(sent: Json, path: str) -> None:
    check_capabilities(stored(**sent), ABLE)
    with pytest.raises(InvalidRequest) as caught:
        check_capabilities(stored(**sent), PLAIN)
    assert (caught.value.error.param, caught.value.error.code) == (path, "unsupported_parameter")
    assert f"'{path}'" in caught.value.error.message
    assert "'m'" in caught.value.error.message


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        ({"previous_input_messages": [{"role": "user", "content": "x"}]}, "previous_input_messages"),
        ({"enable_response_messages": True}, "enable_response_messages"),
    ],
)
def test_harmony_fields_are_refused_for_other_models(sent: Json, path: str) -> None:
    check_capabilities(stored(**sent), HARMONY)
    with pytest.raises(InvalidRequest, match="does not speak harmony") as caught:
        check_capabilities(stored(**sent), ABLE)
    assert (caught.value.error.param, caught.value.error.code) == (path, "unsupported_parameter")


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, "include[1]"),
    ],
)
def test_harmony_models_refuse_log_probabilities(sent: Json, path: str) -> None:
    check_capabilities(stored(**sent), ABLE)
    with pytest.raises(InvalidRequest) as caught:
        check_capabilities(stored(**sent), HARMONY)
    assert caught.value.error.param == path


def test_harmony_messages_exclude_any_other_context() -> None:
    messages = [{"role": "user", "content": "x"}]
    assert stored(input=None, previous_input_messages=messages)["previous_input_messages"] == messages
    found = error(previous_input_messages=messages, previous_response_id="resp_0")
    assert (found.param, found.code) == ("previous_response_id", "mutually_exclusive_parameters")
    assert error(previous_input_messages=["x"]).param == "previous_input_messages[0]"
    assert error(previous_input_messages=[]).param == "previous_input_messages"


@pytest.mark.parametrize(
    "sent",
    [{"tools": BOTH, "tool_choice": "none"}, {"reasoning": {"effort": "none"}}, {"text": {"verbosity": "medium"}}],
)
def test_a_request_that_asks_for_nothing_special_suits_every_model(sent: Json) -> None:
    check_capabilities(stored(**sent), PLAIN)


def kinds_of(union: Any) -> set[str]:
    """The `type`s of the members of a union of typed dicts."""
    schema = TypeAdapter(union).json_schema()
    members = schema.get("oneOf") or schema.get("anyOf") or [schema]
    found: set[str] = set()
    for member in members:
        shape = schema["$defs"][member["$ref"].rsplit("/", 1)[-1]] if "$ref" in member else member
        kind = shape["properties"]["type"]
        found |= set(kind.get("enum", [kind.get("const")]))
    return found
