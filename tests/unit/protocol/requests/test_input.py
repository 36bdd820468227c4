"""`input`: every form that clients send, and the errors about other forms."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseCustomToolCall,
    ResponseFunctionShellToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_output_item import LocalShellCall

from app.protocol.errors import ErrorObject, InvalidRequest
from app.protocol.item_types import COMPACTION_TRIGGER, ITEM_REFERENCE, UNSUPPORTED_ITEMS
from app.protocol.requests.bodies.consistency import outputs_without_call
from app.protocol.requests.bodies.conversation import CreateItems
from app.protocol.requests.validation import validate
from app.protocol.tasks import COMPACT
from tests.support.refusals import (
    CALL,
    FOUND,
    IMAGE,
    LOCAL_CALL,
    LOCAL_OUTPUT,
    OUTPUT,
    PATCH_CALL,
    PATCH_OUTPUT,
    SHELL_CALL,
    SHELL_OUTPUT,
    TRIGGER,
)
from tests.support.requests import parse_request

Json = dict[str, Any]


def items(sent: Any) -> list[Json]:
    """The items of `input`, as the store keeps them."""
    kept: list[Json] = parse_request(orjson.dumps({"model": "m", "input": sent})).stored("resp_ab", {})["input"]
    return kept


def error(sent: Any) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        items(sent)
    return caught.value.error


def text(value: str) -> Json:
    return {"type": "input_text", "text": value}


def output_text(value: str) -> Json:
    return {"type": "output_text", "text": value, "annotations": [], "logprobs": []}


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize("typed", [{}, {"type": "message"}])
@pytest.mark.parametrize("content", ["Hi", [{"type": "input_text", "text": "Hi"}]])
def test_messages_of_clients_are_stored_as_input_parts(role: str, typed: Json, content: Any) -> None:
    (item,) = items([{"role": role, "content": content, **typed}])
    assert item == {
        "type": "message",
        "id": "msg_ab_in0",
        "status": "completed",
        "role": role,
        "content": [text("Hi")],
    }


@pytest.mark.parametrize(
    "content",
    [
        "Hi",
        [{"type": "output_text", "text": "Hi"}],
        [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": None}],
        [{"type": "input_text", "text": "Hi"}],
    ],
)
def test_messages_of_the_model_are_stored_as_output_text(content: Any) -> None:
    (item,) = items([{"role": "assistant", "content": content}])
    assert (item["role"], item["content"]) == ("assistant", [output_text("Hi")])


@pytest.mark.parametrize("dump", [{}, {"exclude_none": True}, {"exclude_unset": True}])
def test_output_messages_come_back_as_the_sdk_dumps_them(dump: Any) -> None:
    part = ResponseOutputText(type="output_text", text="Hi", annotations=[], logprobs=[])
    message = ResponseOutputMessage(
        id="msg_7", type="message", role="assistant", status="completed", content=[part], phase=None
    )
    (item,) = items([message.model_dump(**dump)])
    assert (item["id"], item["status"], item["content"]) == ("msg_7", "completed", [output_text("Hi")])
    assert "phase" not in item


def test_annotations_and_logprobs_of_output_text_are_stored() -> None:
    annotation = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    part = {"type": "output_text", "text": "Hi", "annotations": [annotation], "logprobs": []}
    sent = {"role": "assistant", "status": "incomplete", "phase": "final_answer", "content": [part]}
    (item,) = items([sent])
    assert (item["status"], item["phase"], item["content"]) == ("incomplete", "final_answer", [part])


def test_items_get_ids_by_their_index() -> None:
    sent = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "id": "msg_x"}]
    assert [item["id"] for item in items([*sent, sent[0]])] == ["msg_ab_in0", "msg_x", "msg_ab_in2"]


def test_several_parts_stay_apart() -> None:
    assert items([{"role": "user", "content": [text("a"), text("")]}])[0]["content"] == [text("a"), text("")]


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_message_is_one(content: Any) -> None:
    assert len(items([{"role": "assistant", "content": content}])) == 1


def test_an_empty_string_is_a_message_without_text() -> None:
    assert [item["content"] for item in items("")] == [[text("")]]


@pytest.mark.parametrize("context", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
def test_an_empty_list_is_as_no_input_in_a_request_that_continues_something(context: Json) -> None:
    parsed = parse_request(orjson.dumps({"model": "m", "input": [], **context}))
    assert parsed.stored("resp_ab", {})["input"] == []


def user(content: Any, **more: Any) -> list[Json]:
    return [{"role": "user", "content": content, **more}]


THOUGHTS: Json = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}


@pytest.mark.parametrize(
    ("item", "empty"),
    [
        (THOUGHTS, {"id": "", "summary": [], "encrypted_content": "", "status": ""}),  # as llama.cpp writes it
        (THOUGHTS, {"id": None, "summary": "", "encrypted_content": None, "status": None}),
        ({"type": "reasoning", "summary": []}, {"content": None, "encrypted_content": ""}),
        ({"role": "assistant", "content": "Hi"}, {"id": "", "status": "", "phase": ""}),
        ({"role": "assistant", "content": []}, {"content": None}),
        (user("x")[0], {"id": "", "status": None}),
        (CALL, {"id": "", "namespace": "", "status": ""}),
        (OUTPUT, {"id": "", "name": "", "status": ""}),
    ],
)
def test_an_empty_field_of_an_item_is_none(item: Json, empty: Json) -> None:
    assert items([{**item, **empty}]) == items([item])


@pytest.mark.parametrize(
    "item",
    [
        *user("x"),
        {"role": "assistant", "content": "x"},
        CALL,
        OUTPUT,
        {"type": "custom_tool_call", "call_id": "call_2", "name": "sql", "input": "SELECT 1"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "1"},
        {"type": "reasoning", "summary": [], "content": None},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}, "status": "completed"},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "compaction_trigger"},
    ],
)
def test_an_items_opaque_metadata_is_kept_nowhere(item: Json) -> None:
    marked = {**item, "internal_chat_message_metadata_passthrough": {"turn_id": "t", "deep": {"a": [1]}}}
    assert items([*user("x"), marked]) == items([*user("x"), item])


def test_the_list_of_item_types_is_that_of_the_openai_package() -> None:
    ours = {"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
    hosted = {"code_interpreter_call", "web_search_call", "mcp_call", "mcp_list_tools"}
    approvals = {"mcp_approval_request", "mcp_approval_response"}
    loaded = {"tool_search_call", "tool_search_output", "additional_tools"}
    local = {f"{kind}_call{end}" for kind in ("shell", "apply_patch", "local_shell") for end in ("", "_output")}
    assert openai_item_types() == UNSUPPORTED_ITEMS | ours | hosted | approvals | loaded | local | {
        "reasoning",
        "compaction",
        COMPACTION_TRIGGER,
        ITEM_REFERENCE,
    }


def test_images_are_kept_with_their_detail() -> None:
    (item,) = items(user([text("What is this?"), IMAGE, *({**IMAGE, "detail": detail} for detail in ("high", "low"))]))
    assert item["content"][1:] == [{**IMAGE, "detail": detail} for detail in ("auto", "high", "low")]


def test_refusals_come_back() -> None:
    part = {"type": "refusal", "refusal": "No."}
    (item,) = items([{"role": "assistant", "content": [part, {"type": "output_text", "text": "Hi"}]}])
    assert item["content"] == [part, output_text("Hi")]


class TestCalls:
    def test_a_call_and_its_output(self) -> None:
        call, output = items([CALL, OUTPUT])
        assert call == {**CALL, "id": "fc_ab_in0", "status": "completed"}
        assert output == {
            "type": "function_call_output",
            "id": "fco_ab_in1",
            "status": "completed",
            "call_id": "call_1",
            "output": "42",
        }

    def test_outputs_may_have_parts(self) -> None:
        _, output = items([CALL, {"type": "function_call_output", "call_id": "call_1", "output": [text("a"), IMAGE]}])
        assert output["output"] == [text("a"), {**IMAGE, "detail": "auto"}]

    def test_custom_calls(self) -> None:
        call = {"type": "custom_tool_call", "call_id": "call_2", "name": "sql", "input": "SELECT 1"}
        kept, output = items([call, {"type": "custom_tool_call_output", "call_id": "call_2", "output": "1"}])
        assert kept == {**call, "id": "ctc_ab_in0", "status": "completed"}
        assert (output["id"], output["output"]) == ("ctco_ab_in1", "1")

    @pytest.mark.parametrize("dump", [{}, {"exclude_none": True}, {"exclude_unset": True}, {"by_alias": True}])
    def test_calls_come_back_as_the_sdk_dumps_them(self, dump: Any) -> None:
        call = ResponseFunctionToolCall(
            type="function_call", id="fc_7", call_id="call_1", name="f", arguments="{}", status="completed"
        )
        custom = ResponseCustomToolCall(type="custom_tool_call", id="ctc_7", call_id="call_2", name="g", input="x")
        kept = items([call.model_dump(**dump), custom.model_dump(**dump)])
        assert [item["id"] for item in kept] == ["fc_7", "ctc_7"]

    def test_an_output_follows_its_call(self) -> None:
        output = OUTPUT
        assert outputs_without_call(items([CALL, output])) == {}
        assert outputs_without_call(items([output])) == {"call_1": 0}
        assert outputs_without_call(items([output, CALL])) == {"call_1": 0}
        assert outputs_without_call(items([CALL, {**output, "call_id": "call_2"}])) == {"call_2": 1}

    @pytest.mark.parametrize("absent", [{}, {"call_id": None}])
    def test_an_output_that_nothing_called_for_names_its_tool(self, absent: Json) -> None:
        """So Codex tells a model what happens elsewhere; OpenAI's API takes it."""
        output = {"type": "function_call_output", "namespace": "codex_app", "name": "wake_up", "output": "It is nine."}
        kept = items([*user("x"), {**output, **absent}])
        assert kept[1] == {"id": "fco_ab_in1", "status": "completed", **output}
        assert outputs_without_call(kept) == {}
        assert items([kept[1]]) == [kept[1]]

    def test_a_custom_output_does_not_follow_a_functions_call(self) -> None:
        output = {"type": "custom_tool_call_output", "call_id": "call_1", "output": ""}
        assert outputs_without_call(items([CALL, output])) == {"call_1": 1}


@pytest.mark.parametrize("dump", [{}, {"exclude_none": True}, {"exclude_unset": True}])
def test_reasoning_comes_back_as_the_sdk_dumps_it(dump: Any) -> None:
    thought = ResponseReasoningItem.model_validate(
        {"type": "reasoning", "id": "rs_7", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    )
    (item,) = items([thought.model_dump(**dump)])
    assert item == {
        "type": "reasoning",
        "id": "rs_7",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "encrypted_content": None,
    }


class TestLocalTools:
    def test_calls_and_outputs_are_kept(self) -> None:
        kept = items([SHELL_CALL, SHELL_OUTPUT, PATCH_CALL, PATCH_OUTPUT, LOCAL_CALL, LOCAL_OUTPUT])
        assert [item["id"][:-4] for item in kept] == ["sh_ab", "sho_ab", "apc_ab", "apco_ab", "lsh_ab", "lsho_ab"]
        assert kept[0]["action"] == {"commands": ["ls"], "max_output_length": None, "timeout_ms": None}
        assert kept[1]["output"] == SHELL_OUTPUT["output"]
        assert kept[2]["operation"] == PATCH_CALL["operation"]
        assert (kept[3]["status"], kept[3]["output"]) == ("completed", "Done.")
        assert kept[4]["action"]["command"] == ["ls"]
        assert outputs_without_call(kept) == {}
        assert items(kept) == kept

    def test_an_output_follows_a_call_of_its_own_kind(self) -> None:
        assert outputs_without_call(items([SHELL_OUTPUT])) == {"c": 0}
        assert outputs_without_call(items([SHELL_CALL, {**PATCH_OUTPUT, "call_id": "c"}])) == {"c": 1}

    def test_an_output_of_a_local_shell_may_name_its_call_by_its_own_id(self) -> None:
        """So OpenAI's types have it."""
        output = {"type": "local_shell_call_output", "id": "l", "output": "a"}
        _, kept = items([LOCAL_CALL, output])
        assert (kept["id"], kept["call_id"]) == ("lsho_ab_in1", "l")

    @pytest.mark.parametrize("dump", [{}, {"exclude_none": True}, {"exclude_unset": True}])
    def test_calls_come_back_as_the_sdk_dumps_them(self, dump: Any) -> None:
        sent = [
            ResponseFunctionShellToolCall.model_validate({**SHELL_CALL, "id": "sh_7", "status": "completed"}),
            ResponseApplyPatchToolCall.model_validate({**PATCH_CALL, "id": "apc_7", "status": "completed"}),
            LocalShellCall.model_validate({**LOCAL_CALL, "id": "lsh_7", "status": "completed"}),
        ]
        assert [item["id"] for item in items([call.model_dump(**dump) for call in sent])] == ["sh_7", "apc_7", "lsh_7"]


def test_a_search_on_the_server_comes_back_without_a_call_id() -> None:
    own = {"execution": "server", "call_id": None, "status": "completed"}
    call = {"type": "tool_search_call", "id": "tsc_7", "arguments": {"query": "x"}, **own}
    found = {"type": "tool_search_output", "id": "tso_7", "tools": FOUND["tools"], **own}
    kept = items([call, found])
    assert [(item["id"], item["execution"], item["call_id"]) for item in kept] == [
        ("tsc_7", "server", None),
        ("tso_7", "server", None),
    ]
    assert outputs_without_call(kept) == {}
    assert items(kept) == kept


NOTES: Json = {
    "attributes": {"type": "reasoning_content"},
    "start_tag": "<think>",
    "end_tag": "</think>",
    "started_at": 1764190000.5,
    "ended_at": 1764190002.0,
    "duration": 1,
}
"""What Open WebUI adds to the items that it stores."""


def test_reasoning_that_open_webui_cut_out_of_a_text_is_reasoning() -> None:
    sent = {"type": "reasoning", "id": "r_7", "summary": None, "content": [{"type": "output_text", "text": "Hm."}]}
    plain = {**sent, "content": [{"type": "reasoning_text", "text": "Hm."}]}
    assert items([{**sent, **NOTES}]) == items([plain])


@pytest.mark.parametrize(
    ("output", "outputs"),
    [
        (None, []),
        ("2", [{"type": "logs", "logs": "2"}]),
        ({"stdout": "a", "stderr": "", "result": None}, [{"type": "logs", "logs": "a"}]),
        ({"stdout": "a", "stderr": "b", "result": {"x": 1}}, [{"type": "logs", "logs": 'a\nb\n{"x":1}'}]),
        ([4], [{"type": "logs", "logs": "[4]"}]),
    ],
)
def test_code_that_open_webui_ran_is_a_call_of_the_code_interpreter(output: Any, outputs: list[Json]) -> None:
    sent = {"type": "open_webui:code_interpreter", "id": "ci_7", "lang": "python", "code": "1 + 1", "output": output}
    (item,) = items([{**sent, **NOTES}])
    assert item == {
        "id": "ci_7",
        "status": "completed",
        "type": "code_interpreter_call",
        "code": "1 + 1",
        "container_id": "open_webui",
        "outputs": outputs,
    }
    assert items([item]) == [item]


def test_an_item_of_another_program_is_refused_with_what_to_do() -> None:
    message = error([{"type": "acme:note", "text": "x"}]).message
    assert message.startswith("'input[0].type': 'acme:note' is a type of another program's own")
    assert "Leave the item out" in message


def test_marks_for_a_cache_are_accepted_and_kept_nowhere() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    assert items(user([{**text("x"), **mark}, {**IMAGE, **mark}])) == items(user([text("x"), IMAGE]))


@pytest.mark.parametrize(
    "sent", [{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}, {"id": "msg_1", "type": None}]
)
def test_references_wait_for_their_item(sent: Json) -> None:
    assert items([sent]) == [{"type": "item_reference", "id": "msg_1"}]


class TestCompactionTrigger:
    def stored(self, **body: Any) -> Json:
        return parse_request(orjson.dumps({"model": "m", **body})).stored("resp_ab", {})

    @pytest.mark.parametrize("trigger", [TRIGGER, {**TRIGGER, "id": "ct_1"}])
    def test_a_trigger_is_a_task_and_no_item(self, trigger: Json) -> None:
        stored = self.stored(input=[{"role": "user", "content": "Hi"}, trigger])
        assert stored["task"] == COMPACT
        assert [item["type"] for item in stored["input"]] == ["message"]
        assert self.stored(input="Hi")["task"] is None

    def test_a_trigger_may_stand_alone_behind_a_response(self) -> None:
        assert self.stored(input=[TRIGGER], previous_response_id="resp_1")["task"] == COMPACT

    def test_conversations_take_no_trigger(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            validate(CreateItems, {"items": [TRIGGER]})
        assert caught.value.error.param == "items[0].type"


def openai_item_types() -> set[str]:
    """The `type`s of openai's ResponseInputItem, found in its JSON schema."""
    from openai.types.responses import ResponseInputItem
    from pydantic import TypeAdapter

    schema = TypeAdapter(ResponseInputItem).json_schema()
    found: set[str] = set()
    for member in schema.get("oneOf") or schema["anyOf"]:
        kind = schema["$defs"][member["$ref"].rsplit("/", 1)[-1]]["properties"]["type"]
        options = kind.get("anyOf", [kind])
        found |= {name for option in options for name in option.get("enum", [option.get("const")]) if name}
    return found
