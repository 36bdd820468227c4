"""The result of a tool, for its item and for the model."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest

from workers.formats.calls.hosted import HostedCall
from workers.mcp.results import ResultOptions, failed_result, result_of, tool_list

CALL = HostedCall("s__t", "{}", "mcp", "s", "t")
CODE = HostedCall("python", "{}", "python", None, "python")
SEARCH = HostedCall("browser_search", '{"query": "q"}', "browser", None, "search")
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
PICTURE = types.ImageContent(data=PNG, mime_type="image/png")
URL = f"data:image/png;base64,{PNG}"


def answer(*content: Any, error: bool = False, facts: Any = None) -> types.CallToolResult:
    blocks = [types.TextContent(text=block) if isinstance(block, str) else block for block in content]
    return types.CallToolResult(content=blocks, is_error=error, structured_content=facts)


def test_every_kind_of_content_becomes_text() -> None:
    link = types.ResourceLink(name="n", uri="file:///x")
    file = types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///y", text="inside"))
    blob = types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///z", blob="aGk="))
    sound = types.AudioContent(data="aGk=", mime_type="audio/wav")
    expected = result_of(CALL, answer("a", link, file, blob, sound, PICTURE), ResultOptions(1000)).result
    assert expected == "a\n[n](file:///x)\ninside\n[a file: file:///z]\n[a sound]\n[an image]"


def test_structured_content_without_text_becomes_json() -> None:
    assert result_of(CALL, answer(facts={"a": "é"}), ResultOptions(1000)).result == '{"a": "é"}'


@pytest.mark.parametrize(
    ("texts", "facts", "expected"),
    [
        (["2 rows"], {"rows": [1, "é"]}, '2 rows\n{"rows": [1, "é"]}'),
        (['{"rows":[1,2]}'], {"rows": [1, 2]}, '{"rows":[1,2]}'),
        (["{", '"a": 1}'], {"a": 1}, '{\n"a": 1}'),
        (["sunny"], {"result": "sunny"}, "sunny"),
        (["4"], {"result": 4}, "4"),
        (["1", "two"], {"result": [1, "two"]}, "1\ntwo"),
        (["sunny"], {"result": "rainy"}, 'sunny\n{"result": "rainy"}'),
        ([""], {"a": 1}, '{"a": 1}'),
    ],
)
def test_structured_content_follows_the_text_unless_the_text_is_it(texts: Any, facts: Any, expected: str) -> None:
    assert result_of(CALL, answer(*texts, facts=facts), ResultOptions(1000)).result == expected


def test_data_of_the_built_in_servers_are_not_for_the_model() -> None:
    assert result_of(CODE, answer("4", facts={"stdout": "", "result": "4"}), ResultOptions(1000)).result == "4"


def test_images_go_to_models_that_see_them_and_to_clients_that_include_them() -> None:
    given = answer("look", PICTURE)
    seen = result_of(CODE, given, ResultOptions(1000, ("code_interpreter_call.outputs",), images=True))
    assert seen.fields["outputs"] == [{"type": "logs", "logs": "look\n[an image]"}, {"type": "image", "url": URL}]
    assert isinstance(seen.result, list)
    assert seen.result[1] == {"type": "input_image", "image_url": URL, "detail": "auto"}
    assert result_of(CODE, given, ResultOptions(1000)).fields == {"outputs": None}


@pytest.mark.parametrize("picture", [("aGk=", "image/png"), (PNG, "image/svg+xml"), ("?", "image/png")])
def test_an_image_that_no_model_could_be_shown_is_left_out(picture: tuple[str, str]) -> None:
    data, mime_type = picture
    given = answer(types.ImageContent(data=data, mime_type=mime_type))
    assert result_of(CALL, given, ResultOptions(1000, images=True)).result == "[an image]"


@pytest.mark.parametrize(
    ("text", "expected"), [("abc", "abc"), ("abcd", "abc\n[Cut here: these are the first 3 of 4 bytes.]")]
)
def test_text_is_truncated_to_bytes(text: str, expected: str) -> None:
    assert result_of(CALL, answer(text), ResultOptions(3)).result == expected


def test_truncation_keeps_characters_whole() -> None:
    assert str(result_of(CALL, answer("aé\ud800"), ResultOptions(2)).result).startswith("a\n[Cut")
    assert result_of(CALL, answer("\ud800"), ResultOptions(9)).result == "?"


def test_a_search_gets_its_details_from_the_browser() -> None:
    facts = {
        "cursor": 3,
        "url": "",
        "title": "q",
        "action": {"type": "search", "query": "q", "sources": [{"type": "url", "url": "u"}]},
        "results": [{"url": "u", "title": "t", "lines": [1, 2]}],
    }
    made = result_of(SEARCH, answer("text", facts=facts), ResultOptions(1000, ("web_search_call.action.sources",)))
    assert made.fields["action"]["sources"] == [{"type": "url", "url": "u"}]
    assert made.sources == {"3": {"url": "", "title": "q", "results": facts["results"]}}
    assert "sources" not in result_of(SEARCH, answer("text", facts=facts), ResultOptions(1000)).fields["action"]


@pytest.mark.parametrize("facts", [None, [1], {"action": 5}, {"action": {"type": "open_page"}}])
def test_invalid_structured_content_of_a_browser_is_ignored(facts: Any) -> None:
    made = result_of(SEARCH, answer("text", facts=facts), ResultOptions(1000))
    assert made.fields == {"action": {"type": "search", "query": "q", "queries": ["q"]}}
    assert made.sources == {}


def test_a_failure_has_the_form_of_its_kind_of_call() -> None:
    assert failed_result(CALL, "away", ResultOptions(99), -32000).fields == {
        "output": None,
        "error": {"type": "mcp_protocol_error", "code": -32000, "message": "away"},
    }
    shown = failed_result(CODE, "away", ResultOptions(99, ("code_interpreter_call.outputs",)))
    assert shown.fields == {"outputs": [{"type": "logs", "logs": "away"}]}
    assert (
        failed_result(SEARCH, "away", ResultOptions(99)).fields,
        failed_result(SEARCH, "away", ResultOptions(99)).ok,
    ) == ({}, False)


def test_a_tool_list_has_the_fields_of_openai() -> None:
    tool = types.Tool(name="n", input_schema={"type": "object"}, annotations=types.ToolAnnotations(read_only_hint=True))
    [shown] = tool_list([tool])
    assert shown == {
        "name": "n",
        "description": None,
        "input_schema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    }
