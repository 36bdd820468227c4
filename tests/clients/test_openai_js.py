"""OpenAI's client for JavaScript."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.clients.target import PARIS, REPORT, WEATHER_TOOL, Target
from tests.support.node_clients import ClientFailed, NodeClient, node_client


@pytest.fixture(scope="module")
def openai_js() -> Iterator[NodeClient]:
    with node_client("openai.mjs") as opened:
        yield opened


def test_create_and_retrieve(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("create", target, input=target.script.hello)
    assert answer["made"]["output_text"] == target.script.hello_answer
    assert answer["made"].pop("output_text") == answer["read"].pop("output_text")
    assert answer["made"] == answer["read"]


def test_create_as_a_stream(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("stream", target, input=target.script.long)
    assert answer["text"] == target.script.long_answer
    assert answer["last"]["type"] == "response.completed"


def test_the_stream_helper_accumulates(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("streamHelper", target, input=target.script.hello)
    assert answer == {"text": target.script.hello_answer, "final": target.script.hello_answer}


def test_a_background_stream_is_resumed(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("resume", target, input=target.script.long)
    assert answer["text"] == answer["final"] == target.script.long_answer
    assert answer["last"] == "response.completed"


def test_a_background_response_is_cancelled_and_deleted(openai_js: NodeClient, scripted_target: Target) -> None:
    assert openai_js("cancel", scripted_target) == {"status": "cancelled"}


def test_a_tool_is_called_and_answered(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("callTool", target, input=target.script.weather, tool=WEATHER_TOOL, report=REPORT)
    assert json.loads(answer["call"]["arguments"]) == {"city": "Paris"}
    assert answer["text"] == target.script.weather_answer


def test_a_structured_output(openai_js: NodeClient, target: Target) -> None:
    assert openai_js("parse", target, input=target.script.paris) == PARIS.model_dump()


def test_a_conversation(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("converse", target, name=target.script.name, asked=target.script.asked)
    assert answer["texts"] == [target.script.name_answer, target.script.asked_answer]
    assert answer["items"] == ["user", "assistant", "user", "assistant"]


def test_input_items_models_and_token_counts(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("lists", target, input=target.script.hello)
    assert answer["items"] == [target.script.hello]
    assert target.model in answer["models"]
    assert answer["tokens"] > 0


def test_websocket(openai_js: NodeClient, target: Target) -> None:
    texts = openai_js("websocket", target, name=target.script.name, asked=target.script.asked)
    assert texts == [target.script.name_answer, target.script.asked_answer]


def test_a_summary_of_the_reasoning_is_shown(openai_js: NodeClient, target: Target) -> None:
    reasoning, message = openai_js("reason", target, input=target.script.hello)["output"]
    assert (reasoning["type"], message["type"]) == ("reasoning", "message")
    assert [part["type"] for part in reasoning["summary"]] == ["summary_text"]


def test_an_error_is_typed(openai_js: NodeClient, target: Target) -> None:
    with pytest.raises(ClientFailed, match="temperature") as raised:
        openai_js("refused", target)
    assert raised.value.status == 400


def test_a_completion(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("complete", target, input=target.script.hello)
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", target.script.hello_answer)
    assert answer["usage"]["completion_tokens"] > 0


def test_a_completion_as_a_stream_with_its_usage(openai_js: NodeClient, target: Target) -> None:
    *chunks, last = openai_js("completeStream", target, input=target.script.long)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == target.script.long_answer
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert (last["choices"], last["usage"]["completion_tokens"] > 0) == ([], True)


def test_the_stream_helper_of_completions(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("completeStreamHelper", target, input=target.script.hello)
    assert answer == {"text": target.script.hello_answer, "final": target.script.hello_answer}


def test_a_parsed_completion(openai_js: NodeClient, target: Target) -> None:
    assert openai_js("completeParsed", target, input=target.script.paris) == PARIS.model_dump()


@pytest.mark.parametrize("stream", [False, True])
def test_run_tools_makes_a_loop_of_completions(openai_js: NodeClient, target: Target, stream: bool) -> None:
    answer = openai_js("runTools", target, input=target.script.weather, report=REPORT, stream=stream)
    assert answer["given"] == [{"city": "Paris"}]
    assert answer["text"] == target.script.weather_answer
    assert answer["roles"] == ["user", "assistant", "tool", "assistant"]


def test_reasoning_of_a_completion(openai_js: NodeClient, target: Target) -> None:
    answer = openai_js("complete", target, input=target.script.hello, asked={"reasoning_effort": "medium"})
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"].strip() == target.script.hello_thought
    assert message["content"] == target.script.hello_answer


def test_an_error_of_completions_names_a_field_of_chat(openai_js: NodeClient, target: Target) -> None:
    with pytest.raises(ClientFailed, match="top_logprobs") as raised:
        openai_js("complete", target, input="Hi", asked={"top_logprobs": 99, "logprobs": True})
    assert raised.value.status == 400
