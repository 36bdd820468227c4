"""What a Messages request becomes, and what its errors name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.messages.translation import MessagesRequest, count_request, messages_request
from app.protocol.errors import ErrorObject, ErrorType, InvalidRequest
from app.protocol.include import ENCRYPTED_REASONING
from app.protocol.requests.strict_json import decode_object
from app.protocol.unsealing import SUMMARY_HEAD

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "Hello!"}
TOOL: Json = {"name": "look", "description": "Looks.", "input_schema": {"properties": {"a": {"type": "string"}}}}
USE: Json = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"b": "ä", "a": 1}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.197.c40; cc_entrypoint=sdk-cli;"


def parse(*sent: Json, **fields: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 8, "messages": sent or [USER], **fields}
    return messages_request(decode_object(orjson.dumps(body)))


def stored(*messages: Json, **fields: Any) -> Json:
    return parse(*messages, **fields).stored("resp_1", {})


def items(*messages: Json, **fields: Any) -> list[Json]:
    """The items of `input`, without ids and statuses."""
    kept = stored(*messages, **fields)["input"]
    return [{k: v for k, v in item.items() if k not in ("id", "status")} for item in kept]


def refusal(*messages: Json, **fields: Any) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        parse(*messages, **fields)
    return caught.value.error


def user(*content: Any) -> Json:
    return {"role": "user", "content": list(content)}


def said(*content: Any) -> Json:
    return {"role": "assistant", "content": list(content)}


def result(content: Any = None, **fields: Any) -> Json:
    sent = {} if content is None else {"content": content}
    return {"type": "tool_result", "tool_use_id": "toolu_1", **sent, **fields}


def block(text: str) -> Json:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def text(value: str) -> Json:
    return {"type": "input_text", "text": value}


class TestPrompt:
    @pytest.mark.parametrize(
        ("system", "instructions"),
        [
            ([block(BILLING), block("You help."), block("Be brief.")], "You help.\n\nBe brief."),
            (f"{BILLING}\n\nYou help.", "You help."),
            ([block(f"{BILLING}\nYou help.")], "You help."),
            ([block("You help."), block("The x-anthropic-billing-header: is no secret.")],) * 2,
            (BILLING, None),
            ("You help.", "You help."),
            ("", None),
            ([], None),
        ],
    )
    def test_the_billing_line_is_left_out_of_the_system_prompt(self, system: Any, instructions: Any) -> None:
        """It changes with every start of Claude Code: nothing behind it would come from the prefix cache."""
        if isinstance(instructions, list):
            instructions = "\n\n".join(each["text"] for each in instructions)
        assert stored(system=system)["instructions"] == instructions

    def test_roles_and_their_order_stay(self) -> None:
        sent = [{"role": role, "content": role} for role in ("user", "system", "assistant", "user", "system")]
        assert [(item["role"], item["content"][0]["text"]) for item in items(*sent)] == [
            (each["role"], each["content"]) for each in sent
        ]

    def test_blocks_of_a_message_are_its_parts(self) -> None:
        by_url = {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}
        by_id = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
        found = {"type": "search_result", "title": "T", "source": "http://s", "content": [block("a"), block("b")]}
        (item,) = items(user(block("What?"), IMAGE, by_url, by_id, found))
        assert item["content"] == [
            text("What?"),
            {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
            {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "auto"},
            {"type": "input_image", "file_id": "file_1", "detail": "auto"},
            text("T\nhttp://s\na\nb"),
        ]

    @pytest.mark.parametrize(
        ("source", "part"),
        [
            (
                {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
                {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "document.pdf"},
            ),
            ({"type": "text", "media_type": "text/plain", "data": "a"}, {"filename": "document.txt", "text": "a"}),
            ({"type": "url", "url": "https://x.example/a.pdf"}, {"file_url": "https://x.example/a.pdf"}),
            ({"type": "file", "file_id": "file_1"}, {"file_id": "file_1"}),
            ({"type": "content", "content": "a"}, {"filename": "document.txt", "text": "a"}),
            ({"type": "content", "content": [block("a"), block("b")]}, {"filename": "document.txt", "text": "a\nb"}),
        ],
    )
    def test_a_document_is_a_file(self, source: Json, part: Json) -> None:
        sent = {"type": "document", "source": source}
        (item,) = items(user(sent))
        assert item["content"] == [{"type": "input_file", **part}]
        (item,) = items(user({**sent, "title": "T", "context": "C"}))
        assert item["content"] == [text("C"), {"type": "input_file", **part, "filename": "T"}]

    def test_an_answer_becomes_its_thoughts_its_text_and_its_calls_in_their_order(self) -> None:
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "of another server"}
        sealed = {"type": "thinking", "thinking": "", "signature": "lh1_x"}
        redacted = {"type": "redacted_thinking", "data": "lh1_y"}
        nothing = {"type": "thinking", "thinking": "", "signature": ""}
        found = items(USER, said(thought, block("So"), block("."), USE, sealed, redacted, nothing), user(result("4")))
        kinds = ["message", "reasoning", "message", "function_call", "reasoning", "reasoning", "function_call_output"]
        assert [item["type"] for item in found] == kinds
        assert found[1]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert [item["encrypted_content"] for item in (found[1], *found[4:6])] == [None, "lh1_x", "lh1_y"]
        assert [part["text"] for part in found[2]["content"]] == ["So", "."]
        assert (found[3]["call_id"], found[3]["name"]) == ("toolu_1", "look")
        assert found[3]["arguments"] == '{"b": "ä", "a": 1}', "as models write it: the prefix cache has these tokens"

    def test_an_answer_without_blocks_is_an_empty_message(self) -> None:
        assert [item["role"] for item in items(USER, said(), USER)] == ["user", "assistant", "user"]

    @pytest.mark.parametrize(
        ("sent", "output"),
        [
            (result(), ""),
            (result("4"), "4"),
            (result([block("4"), IMAGE]), [text("4"), "image"]),
            (result("no", is_error=True), "Error: no"),
            (result(is_error=True), "Error: "),
            (result([block("no")], is_error=True), [text("Error: "), text("no")]),
            (result("4", is_error=False), "4"),
        ],
    )
    def test_what_a_tool_returned_is_its_output(self, sent: Json, output: Any) -> None:
        *_, found, after = items(USER, said(USE), user(sent, block("Go on.")))
        got = found["output"]
        if isinstance(got, list):
            got = ["image" if part["type"] == "input_image" else part for part in got]
        assert (found["call_id"], got, after["content"]) == ("toolu_1", output, [text("Go on.")])

    def test_a_summary_is_a_message_and_one_that_failed_is_none(self) -> None:
        found = items(said({"type": "compaction", "content": "It was long."}), USER)
        assert found[0]["content"][0]["text"] == f"{SUMMARY_HEAD}It was long."
        assert len(items(said({"type": "compaction", "content": None}), USER)) == 1


class TestTools:
    def test_a_tool_is_a_function(self) -> None:
        (tool,) = stored(tools=[{**TOOL, "type": "custom", "strict": True, "input_examples": [{}]}])["tools"]
        assert (tool["type"], tool["name"], tool["description"], tool["strict"]) == ("function", "look", "Looks.", True)
        assert tool["parameters"] == {"type": "object", **TOOL["input_schema"]}

    @pytest.mark.parametrize(
        ("choice", "made"),
        [
            ({"type": "auto"}, "auto"),
            ({"type": "any"}, "required"),
            ({"type": "none"}, "none"),
            ({"type": "tool", "name": "look"}, {"type": "function", "name": "look"}),
            ({"type": "tool", "name": "web_search"}, {"type": "web_search"}),
        ],
    )
    @pytest.mark.parametrize("one", [True, False, None])
    def test_choices(self, choice: Json, made: Any, one: bool | None) -> None:
        sent = {**choice, **({} if one is None else {"disable_parallel_tool_use": one})}
        tools = [TOOL, {"type": "web_search_20250305", "name": "web_search"}]
        found = stored(tools=tools, tool_choice=sent)
        assert (found["tool_choice"], found["parallel_tool_calls"]) == (made, not one)

    def test_hosted_tools_have_the_names_of_anthropics(self) -> None:
        searching = {
            "type": "web_search_20260209",
            "name": "web_search",
            "allowed_domains": ["x.example"],
            "max_uses": 3,
            "user_location": {"type": "approximate", "city": "Rome"},
        }
        search, code = stored(tools=[searching, {"type": "code_execution_20250825", "name": "code_execution"}])["tools"]
        assert (search["type"], search["filters"]) == ("web_search", {"allowed_domains": ["x.example"]})
        assert search["user_location"] == {"type": "approximate", "city": "Rome"}
        assert code == {"type": "code_interpreter", "container": {"type": "auto"}}

    @pytest.mark.parametrize(
        ("server", "toolset", "allowed"),
        [
            ({}, None, None),
            ({"tool_configuration": {"allowed_tools": ["a"]}}, None, ["a"]),
            ({"tool_configuration": {"enabled": False}}, None, "none"),
            ({}, {}, None),
            ({}, {"default_config": {"enabled": False}, "configs": {"a": {"enabled": True}, "b": {}}}, ["a"]),
            ({}, {"default_config": {"enabled": False}}, "none"),
        ],
    )
    def test_servers_of_tools(self, server: Json, toolset: Json | None, allowed: Any) -> None:
        sent = {"type": "url", "name": "docs", "url": "https://x.example/mcp", "authorization_token": "t", **server}
        named = [] if toolset is None else [{"type": "mcp_toolset", "mcp_server_name": "docs", **toolset}]
        request = parse(mcp_servers=[sent], tools=named)
        found = request.stored("resp_1", {})["tools"]
        if allowed == "none":
            assert found == []
            return
        ((label, rule, names),) = [(t["server_label"], t["require_approval"], t["allowed_tools"]) for t in found]
        assert (label, rule, names) == ("docs", "never", allowed)
        assert request.secrets() == {"docs": {"Authorization": "Bearer t"}}

    def test_a_tool_that_loads_later_comes_where_the_clients_search_first_names_it(self) -> None:
        later = {**TOOL, "name": "hidden", "defer_loading": True}
        found = result([{"type": "tool_reference", "tool_name": "hidden"}])
        sent = [USER, said(USE), user(found, block("Go on.")), said({**USE, "id": "toolu_2"}), user(found)]
        kept = stored(*sent, tools=[TOOL, later])
        assert [tool["name"] for tool in kept["tools"]] == ["look"]
        kinds = [item["type"] for item in kept["input"]]
        assert kinds[2:5] == ["function_call_output", "additional_tools", "message"]
        assert kinds.count("additional_tools") == 1
        assert [tool["name"] for tool in kept["input"][3]["tools"]] == ["hidden"]

    def test_a_tool_joins_in_the_middle_by_its_name_or_whole(self) -> None:
        later = {**TOOL, "name": "hidden", "defer_loading": True}
        added = [
            {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "hidden"}},
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {**TOOL, "name": "new"}}},
            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}},
        ]
        kept = items(USER, {"role": "system", "content": [block("More."), *added]}, USER, tools=[TOOL, later])
        kinds = ["message", "additional_tools", "additional_tools", "message"]
        assert [item["type"] for item in kept][1:] == kinds
        assert [item["tools"][0]["name"] for item in kept[2:4]] == ["hidden", "new"]

    def test_calls_that_the_server_ran_come_back_as_what_they_were(self) -> None:
        searched = {"type": "server_tool_use", "id": "s_1", "name": "web_search", "input": {"query": "q"}}
        urls = [{"type": "web_search_result", "url": "http://x", "title": "X", "encrypted_content": ""}]
        found = {"type": "web_search_tool_result", "tool_use_id": "s_1", "content": urls}
        ran = {"type": "server_tool_use", "id": "s_2", "name": "code_execution", "input": {"code": "1+1"}}
        ended = {"type": "code_execution_result", "stdout": "2", "stderr": "", "return_code": 0, "content": []}
        out = {"type": "code_execution_tool_result", "tool_use_id": "s_2", "content": ended}
        called = {"type": "mcp_tool_use", "id": "s_3", "name": "f", "server_name": "docs", "input": {"a": 1}}
        gave = {"type": "mcp_tool_result", "tool_use_id": "s_3", "is_error": True, "content": [block("no")]}
        unknown = {"type": "server_tool_use", "id": "s_4", "name": "bash_code_execution", "input": {}}
        kept = items(USER, said(searched, found, ran, out, called, gave, unknown, block("So.")), USER)[1:-1]
        assert [item["type"] for item in kept] == ["web_search_call", "code_interpreter_call", "mcp_call", "message"]
        source = {"type": "url", "url": "http://x"}
        assert kept[0]["action"] == {"type": "search", "query": "q", "sources": [source]}
        assert (kept[1]["code"], kept[1]["outputs"]) == ("1+1", [{"type": "logs", "logs": "2"}])
        assert (kept[2]["server_label"], kept[2]["arguments"], kept[2]["error"]) == ("docs", '{"a": 1}', "no")


class TestAnswer:
    @pytest.mark.parametrize(
        ("fields", "effort", "shows", "omits"),
        [
            ({}, None, False, False),
            ({"thinking": {"type": "disabled"}}, "none", False, False),
            ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "none", False, False),
            ({"thinking": {"type": "adaptive"}}, "medium", True, False),
            ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}, "xhigh", True, False),
            ({"thinking": {"type": "enabled", "budget_tokens": 9000, "display": "omitted"}}, "medium", True, True),
            ({"output_config": {"effort": "low"}}, "low", False, False),
        ],
    )
    def test_thoughts(self, fields: Json, effort: str | None, shows: bool, omits: bool) -> None:
        request = parse(**fields)
        kept = request.stored("resp_1", {})
        assert ((kept["reasoning"] or {}).get("effort"), request.in_session) == (effort, True)
        assert (request.shows_thoughts, request.omits_thoughts) == (shows, omits)
        assert (ENCRYPTED_REASONING in kept["include"]) == shows

    def test_the_form_of_the_text(self) -> None:
        form = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}
        for fields in ({"output_config": {"format": form}}, {"output_format": form}):
            made = stored(**fields)["text"]["format"]
            assert (made["type"], made["schema"], made["strict"]) == ("json_schema", form["schema"], True)

    def test_sampling_and_limits(self) -> None:
        sent = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 250_001, "run_timeout": 9.0, "seed": 1}
        kept = stored(**sent)
        assert (kept["temperature"], kept["top_p"], kept["max_output_tokens"]) == (0.5, 0.9, 250_001)
        assert kept["extra"] == {"top_k": 7, "seed": 1}
        assert (kept["store"], stored(store=True)["store"]) == (False, True)

    def test_stop_sequences_are_told_from_the_text(self) -> None:
        request = parse(stop_sequences=["a", "b", "a"])
        assert request.stops == ("a", "b")
        assert request.stored("resp_1", {})["extra"] == {"stop": ["a", "b"], "include_stop_str_in_output": True}
        assert stored(stop_sequences=[])["extra"] == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role"),
        ({"messages": [USER, user({"type": "text"})]}, "messages.1.content.0.text"),
        ({"messages": [USER, user(block("a"), {"type": "video"})]}, "messages.1.content.1.type"),
        ({"messages": [USER, said(block("a"))]}, "messages.1"),
        ({"messages": [user(result("4"), block("a"), {**IMAGE, "source": {**IMAGE["source"], "data": "?"}})]},
         "messages.0.content.2.source"),
        ({"messages": [said({**USE, "id": ""}), USER]}, "messages.0.content.0.id"),
        ({"messages": [said({**USE, "name": ""}), USER]}, "messages.0.content.0.name"),
        ({"messages": [user(result("4", tool_use_id="\0"))]}, "messages.0.content.0.tool_use_id"),
        ({"messages": [user(result([block("4"), {**IMAGE, "source": {**IMAGE["source"], "data": "?"}}]))]},
         "messages.0.content.0.content.1.source"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools.0.name"),
        ({"tools": [TOOL, {**TOOL, "input_schema": {"type": "array"}}]}, "tools.1.input_schema"),
        ({"tools": [{"type": "computer_20250124", "name": "c"}]}, "tools.0.type"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}]}, "tools.0.mcp_server_name"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}] * 2}, "tools.1.mcp_server_name"),
        ({"mcp_servers": [{"type": "url", "name": "a b", "url": "http://x"}]}, "mcp_servers.0.name"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format.schema"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": ["x" * 1000]}, "stop_sequences.0"),
        ({"top_k": -2}, "top_k"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"unknown": 1}, "unknown"),
        ({"container": "c"}, "container"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_as_its_sender_wrote_it(fields: Json, param: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert f"'{param}'" in error.message


def test_later_errors_name_the_field_as_its_sender_wrote_it() -> None:
    """Those of the acceptor, and of the worker."""
    thought = {"type": "redacted_thinking", "data": "x"}
    sent = [USER, {"role": "system", "content": "s"}, said(thought, block("a"), block("b"), USE), user(result("4"))]
    names = parse(*sent, tools=[TOOL]).names
    for path, own in (
        ("input", "messages"),
        ("input[1].content[0].text", "messages.1.content"),
        ("input[2].encrypted_content", "messages.2.content.0.data"),
        ("input[3].content[1].text", "messages.2.content.2.text"),
        ("input[4].arguments", "messages.2.content.3.input"),
        ("input[5].call_id", "messages.3.content.0.tool_use_id"),
        ("input[99].content", "messages.99.content"),
        ("tools[0].parameters.x", "tools.0.input_schema.x"),
        ("instructions", "system"),
        ("reasoning.effort", "output_config.effort"),
        ("max_output_tokens", "max_tokens"),
        ("model", "model"),
    ):
        assert names.of(path) == own
    asks = ErrorObject("Send a smaller 'max_output_tokens'.", ErrorType.TOKENS)
    assert names.error(asks).message == "Send a smaller 'max_tokens'."
    assert count_request({"model": "m", "messages": [USER]}).names.of("input[0].content") == "messages.0.content"
