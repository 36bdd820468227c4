"""Items of a context to messages for a chat template."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.requests import message, stored_request
from workers.engine.base import EngineError, InvalidSampling
from workers.formats.calls.client_tools import client_tools_of
from workers.formats.chat.messages import messages_of
from workers.formats.chat.template import template_args_of

Item = dict[str, Any]


def thought(*texts: str, summary: str = "") -> Item:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    summaries = [{"type": "summary_text", "text": summary}] if summary else []
    return {"type": "reasoning", "id": "rs_1", "status": "completed", "content": content, "summary": summaries}


def call(name: str = "f", arguments: str = "{}", call_id: str = "call_1") -> Item:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": arguments}


def custom(text: str) -> Item:
    return {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "c", "input": text}


def output(said: Any, call_id: str = "call_1", kind: str = "function_call_output") -> Item:
    return {"type": kind, "id": "fco_1", "call_id": call_id, "output": said}


def function(name: str, arguments: str, call_id: str = "call_1") -> Item:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_instructions_and_the_system_messages_at_the_head_are_one() -> None:
    items = [message("a", "developer"), message("b", "system"), message("c"), message("d", "developer")]
    assert messages_of(items, "i") == [
        {"role": "system", "content": "i\n\na\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "d"},
    ]


@pytest.mark.parametrize(("parser", "shown"), [(None, "fco_7"), ("kimi_k2", "functions.app__wake_up:0")])
def test_an_output_that_nothing_called_for_names_its_tool(parser: str | None, shown: str) -> None:
    item = {"type": "function_call_output", "id": "fco_7", "name": "wake_up", "namespace": "app", "output": "Nine."}
    client = client_tools_of(stored_request(), [item])
    assert messages_of([message("q"), item], None, parser, client) == [
        {"role": "user", "content": "q"},
        {"role": "tool", "tool_call_id": shown, "name": "app__wake_up", "content": "Nine."},
    ]


def test_the_model_s_output_of_one_turn_is_one_message() -> None:
    items = [
        message("q"),
        thought("I ", "see."),
        message("Let me look.", "assistant"),
        call("f", '{"a":1}', "call_1"),
        call("g", "{}", "call_2"),
        output("one"),
        output("two", "call_2"),
        message("Done.", "assistant"),
    ]
    assert messages_of(items) == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning": "I see.",
            "tool_calls": [function("f", '{"a":1}'), function("g", "{}", "call_2")],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "one"},
        {"role": "tool", "tool_call_id": "call_2", "content": "two"},
        {"role": "assistant", "content": "Done."},
    ]


def test_two_answers_in_a_row_stay_apart_in_one_message() -> None:
    items = [message("a", "assistant"), thought("x"), message("b", "assistant"), thought("y")]
    assert messages_of(items) == [{"role": "assistant", "content": "a\n\nb", "reasoning": "x\ny"}]


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_each_text_of_a_long_message_is_copied_once(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time and memory to build a prompt grow with its texts, and not with their square."""

    class Joint(str):
        copied = 0

        def join(self, texts: Any) -> str:
            made = super().join(texts)
            Joint.copied += len(made)
            return made

    monkeypatch.setattr("workers.formats.chat.messages._JOINTS", {"content": Joint("\n\n"), "reasoning": Joint("\n")})
    [made] = messages_of([message("x" * 8, role)] * 1000)
    assert made["content"] == "\n\n".join(["x" * 8] * 1000)
    assert Joint.copied == len(made["content"])


def test_an_image_in_the_first_system_message_stays_apart_from_the_next_one() -> None:
    image = {"type": "input_image", "image_url": "data:,", "detail": "auto"}
    head = {"type": "message", "role": "system", "content": [image]}
    assert [made["role"] for made in messages_of([head, message("b", "system")])] == ["system", "system"]


def test_a_summary_stands_in_for_missing_reasoning() -> None:
    assert messages_of([thought(summary="in short")]) == [{"role": "assistant", "content": "", "reasoning": "in short"}]
    assert messages_of([thought()]) == [{"role": "assistant", "content": ""}]


def test_a_summary_beside_reasoning_is_not_shown_again() -> None:
    assert messages_of([thought("Hm.", summary="Hm.")])[0]["reasoning"] == "Hm."


def test_a_refusal_is_the_model_s_text() -> None:
    refused = {**message("", "assistant"), "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages_of([refused]) == [{"role": "assistant", "content": "No."}]


def test_a_custom_call_is_a_call_with_one_string() -> None:
    items = [custom('say "hi"\n'), output("ok", kind="custom_tool_call_output")]
    assert messages_of(items) == [
        {"role": "assistant", "content": "", "tool_calls": [function("c", '{"input": "say \\"hi\\"\\n"}')]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
    ]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ('{"a": ', '{"arguments": "{\\"a\\": "}'),
        ("5", '{"arguments": "5"}'),
    ],
)
def test_cut_arguments_are_still_an_object(arguments: str, shown: str) -> None:
    [turn] = messages_of([call("f", arguments)])
    assert turn["tool_calls"][0]["function"]["arguments"] == shown


def test_images_make_a_list_of_parts_and_text_alone_does_not() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    text = {"type": "input_text", "text": "What is it?"}
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
    items = [{**message(""), "content": [text, image]}, call(), output([text]), output([image])]
    contents = [turn["content"] for turn in messages_of(items) if turn["role"] != "assistant"]
    assert contents == [[{"type": "text", "text": "What is it?"}, shown], "What is it?", [shown]]


def test_call_ids_have_the_form_of_the_model_s_format() -> None:
    items = [call("f", call_id="call_abc_1"), call("g", call_id="call_abc_2"), output("x", "call_abc_2")]

    def ids(tool_parser: str | None) -> list[str]:
        turn, answer = messages_of(items, None, tool_parser)
        return [*(made["id"] for made in turn["tool_calls"]), answer["tool_call_id"]]

    assert ids("hermes") == ["call_abc_1", "call_abc_2", "call_abc_2"]
    assert ids("kimi_k2") == ["functions.f:0", "functions.g:1", "functions.g:1"]
    nine = ids("mistral")
    assert nine[1] == nine[2] != nine[0]
    assert all(len(made) == 9 and made.isalnum() for made in nine)


@pytest.mark.parametrize("item", [{"type": "compaction"}, {**message(""), "content": [{"type": "input_audio"}]}])
def test_items_and_parts_that_chat_templates_cannot_show_are_refused_by_name(item: Item) -> None:
    with pytest.raises(EngineError, match=r"this model takes no (item|part) of type '(compaction|input_audio)'"):
        messages_of([item])


def test_a_file_is_shown_with_its_name() -> None:
    file = {"type": "input_file", "file_id": "file_1", "filename": "a.md", "text": "# Hi"}
    parts = [{"type": "input_text", "text": "Read: "}, file]
    [shown] = messages_of([{**message(""), "content": parts}])
    assert shown["content"] == 'Read: <file name="a.md">\n# Hi\n</file>\n'
    [_, result] = messages_of(
        [
            {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": [file]},
        ]
    )
    assert result["content"] == '<file name="a.md">\n# Hi\n</file>\n'


EFFORTS = [
    (None, {}),
    ("none", {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
    ("minimal", {"reasoning_effort": "minimal", "enable_thinking": False, "thinking": False}),
    ("low", {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}),
    ("xhigh", {"reasoning_effort": "xhigh", "enable_thinking": True, "thinking": True}),
]


@pytest.mark.parametrize(("effort", "args"), EFFORTS)
def test_the_effort_sets_the_thinking_arguments(effort: str | None, args: Item) -> None:
    request = stored_request(reasoning={"effort": effort, "summary": None})
    assert template_args_of(request, {}) == args


def test_template_arguments_come_from_the_request_then_its_fields_then_the_model() -> None:
    text = {"format": {"type": "text"}, "verbosity": "low"}
    own = {"thinking": False, "colour": "red"}
    request = {
        **stored_request(reasoning={"effort": "high"}, extra={"chat_template_kwargs": own}),
        "text": text,
    }
    args = template_args_of(request, {"enable_thinking": False, "colour": "blue", "shape": "round"})
    assert args == {
        "enable_thinking": True,
        "thinking": False,
        "reasoning_effort": "high",
        "verbosity": "low",
        "colour": "red",
        "shape": "round",
    }


@pytest.mark.parametrize("name", ["chat_template", "tools", "add_generation_prompt"])
def test_a_request_cannot_bring_its_own_template(name: str) -> None:
    with pytest.raises(InvalidSampling, match=f"chat_template_kwargs.{name}"):
        template_args_of(stored_request(extra={"chat_template_kwargs": {name: "x"}}), {})
