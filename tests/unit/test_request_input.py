"""`input`: every text form that clients send, and what is wrong with the others."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from app.protocol.errors import ApiError, InvalidRequest
from app.protocol.items import NOT_YET, PARTS_NOT_YET
from app.protocol.request import parse_request

Json = dict[str, Any]


def items(sent: Any) -> list[Json]:
    """`input` as it is stored."""
    kept: list[Json] = parse_request(orjson.dumps({"model": "m", "input": sent})).stored("resp_ab", {})["input"]
    return kept


def error(sent: Any) -> ApiError:
    with pytest.raises(InvalidRequest) as caught:
        items(sent)
    return caught.value.error


def text(value: str) -> Json:
    return {"type": "input_text", "text": value}


def said(value: str) -> Json:
    return {"type": "output_text", "text": value, "annotations": [], "logprobs": []}


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize("typed", [{}, {"type": "message"}])
@pytest.mark.parametrize("content", ["Hi", [{"type": "input_text", "text": "Hi"}]])
def test_messages_of_callers(role: str, typed: Json, content: Any) -> None:
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
    assert (item["role"], item["content"]) == ("assistant", [said("Hi")])


@pytest.mark.parametrize("dump", [{}, {"exclude_none": True}, {"exclude_unset": True}])
def test_output_messages_come_back_as_the_sdk_dumps_them(dump: Any) -> None:
    part = ResponseOutputText(type="output_text", text="Hi", annotations=[], logprobs=[])
    message = ResponseOutputMessage(
        id="msg_7", type="message", role="assistant", status="completed", content=[part], phase=None
    )
    (item,) = items([message.model_dump(**dump)])
    assert (item["id"], item["status"], item["content"]) == ("msg_7", "completed", [said("Hi")])
    assert "phase" not in item


def test_what_is_not_understood_but_harmless_is_kept() -> None:
    annotation = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    part = {"type": "output_text", "text": "Hi", "annotations": [annotation], "logprobs": []}
    sent = {"role": "assistant", "status": "incomplete", "phase": "final_answer", "content": [part]}
    (item,) = items([sent])
    assert (item["status"], item["phase"], item["content"]) == ("incomplete", "final_answer", [part])


def test_items_get_ids_by_their_place() -> None:
    sent = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "id": "msg_x"}]
    assert [item["id"] for item in items([*sent, sent[0]])] == ["msg_ab_in0", "msg_x", "msg_ab_in2"]


def test_several_parts_stay_apart() -> None:
    assert items([{"role": "user", "content": [text("a"), text("")]}])[0]["content"] == [text("a"), text("")]


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_message_is_one(content: Any) -> None:
    assert len(items([{"role": "assistant", "content": content}])) == 1


@pytest.mark.parametrize(("sent", "code"), [("", "empty_string"), ([], "empty_array")])
def test_an_empty_input_is_refused(sent: Any, code: str) -> None:
    assert (error(sent).param, error(sent).code) == ("input", code)


def user(content: Any, **more: Any) -> list[Json]:
    return [{"role": "user", "content": content, **more}]


FAULTS: list[tuple[Any, str, str]] = [
    (5, "input", "invalid_type"),
    (None, "input", "invalid_type"),
    ({"role": "user", "content": "x"}, "input", "invalid_type"),
    ([5], "input[0]", "invalid_type"),
    (["x"], "input[0]", "invalid_type"),
    ([None], "input[0]", "invalid_type"),
    ([{"role": "user"}], "input[0].content", "missing_required_parameter"),
    ([{"content": "x"}], "input[0].role", "missing_required_parameter"),
    ([{}], "input[0].role", "missing_required_parameter"),
    ([{"role": "tool", "content": "x"}], "input[0].role", "invalid_value"),
    ([{"role": 5, "content": "x"}], "input[0].role", "invalid_value"),
    ([{"type": "telegram"}], "input[0].type", "invalid_value"),
    ([{"type": None, "role": "user", "content": "x"}], "input[0].type", "invalid_type"),
    (user(7), "input[0].content", "invalid_type"),
    (user(None), "input[0].content", "invalid_type"),
    (user({"type": "input_text", "text": "x"}), "input[0].content", "invalid_type"),
    (user(["x"]), "input[0].content[0]", "invalid_type"),
    (user([{"text": "x"}]), "input[0].content[0].type", "missing_required_parameter"),
    (user([{"type": "text", "text": "x"}]), "input[0].content[0].type", "invalid_value"),
    (user([{"type": "output_text", "text": "x"}]), "input[0].content[0].type", "invalid_value"),
    (user([{"type": "input_text"}]), "input[0].content[0].text", "missing_required_parameter"),
    (user([{"type": "input_text", "text": 5}]), "input[0].content[0].text", "invalid_type"),
    (user([text("a"), text("b"), {"type": "input_text", "text": None}]), "input[0].content[2].text", "invalid_type"),
    (user([{**text("x"), "tone": "loud"}]), "input[0].content[0].tone", "unknown_parameter"),
    (user("x", name="me"), "input[0].name", "unknown_parameter"),
    (user("x", phase="commentary"), "input[0].phase", "invalid_value"),
    (user("x", status="done"), "input[0].status", "invalid_value"),
    (user("x", id=""), "input[0].id", "empty_string"),
    ([*user("x"), *user("y"), {"role": "user", "content": [{"type": "input_text"}]}], "input[2].content[0].text", ""),
    ([{"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": 1}]}],
     "input[0].content[0].annotations", "invalid_type"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "named", "code"), FAULTS)
def test_the_field_at_fault_is_named_as_the_caller_wrote_it(sent: Any, named: str, code: str) -> None:
    found = error(sent)
    assert found.param == named
    assert code in ("", found.code)
    assert f"'{named}'" in found.message
    assert "\n" not in found.message
    assert "<" not in found.message, "a tag of a union"


@pytest.mark.parametrize("kind", sorted(NOT_YET))
def test_item_types_to_come_are_refused_by_name(kind: str) -> None:
    found = error([{"type": kind, "content": "x"}])
    assert (found.param, found.code) == ("input[0].type", "unsupported_parameter")
    assert kind in found.message


@pytest.mark.parametrize("kind", sorted(PARTS_NOT_YET))
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_part_types_to_come_are_refused_by_name(kind: str, role: str) -> None:
    found = error([{"role": role, "content": [{"type": kind, "x": 1}]}])
    assert (found.param, found.code) == ("input[0].content[0].type", "unsupported_parameter")


def test_the_list_of_item_types_is_that_of_the_openai_package() -> None:
    assert openai_item_types() == NOT_YET | {"message"}


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
