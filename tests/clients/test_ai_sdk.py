"""The AI SDK with its OpenAI provider, and with its two providers of chat completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.target import ON_BOTH_ENGINES, PARIS, REPORT, Target
from tests.support.node_clients import ClientFailed, NodeClient, node_client

CALLS = [{"toolName": "get_weather", "input": {"city": "Paris"}}]


@pytest.fixture(scope="module")
def ai() -> Iterator[NodeClient]:
    with node_client("ai_sdk.mjs") as opened:
        yield opened


def test_generate_text(ai: NodeClient, target: Target) -> None:
    answer = ai("generate", target, prompt=target.script.hello)
    assert (answer["text"], answer["finishReason"]) == (target.script.hello_answer, "stop")
    assert answer["usage"]["totalTokens"] == answer["usage"]["inputTokens"] + answer["usage"]["outputTokens"]


def test_stream_text(ai: NodeClient, target: Target) -> None:
    answer = ai("stream", target, prompt=target.script.long)
    assert answer["text"] == target.script.long_answer
    assert answer["kinds"] == ["start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"]


@ON_BOTH_ENGINES
@pytest.mark.parametrize("store", [True, False])
def test_a_tool_is_called_in_a_loop(ai: NodeClient, target: Target, store: bool) -> None:
    answer = ai("callTool", target, prompt=target.script.weather, report=REPORT, store=store)
    assert answer == {"text": target.script.weather_answer, "calls": CALLS}


def test_a_tool_is_called_in_a_streamed_loop(ai: NodeClient, target: Target) -> None:
    answer = ai("streamToolCall", target, prompt=target.script.weather, report=REPORT)
    assert answer["text"] == target.script.weather_answer
    assert {"tool-input-start", "tool-input-delta", "tool-input-end", "tool-call", "tool-result"} <= set(
        answer["kinds"]
    )


@ON_BOTH_ENGINES
def test_a_structured_output(ai: NodeClient, target: Target) -> None:
    assert ai("structured", target, prompt=target.script.paris) == PARIS.model_dump()


@ON_BOTH_ENGINES
def test_reasoning_is_shown(ai: NodeClient, target: Target) -> None:
    answer = ai("reason", target, prompt=target.script.hello)
    assert answer["text"] == target.script.hello_answer
    assert answer["reasoningText"].strip()
    assert answer["deltas"].strip()


@pytest.mark.parametrize("store", [True, False])
def test_reasoning_goes_back_with_the_results_of_tools(ai: NodeClient, scripted_target: Target, store: bool) -> None:
    """By reference if the response was stored, and as encrypted content if not."""
    call = scripted_target.script.weather.removeprefix("/raw ")
    prompt = f"/raw <think>Hm.</think>{call}"
    answer = ai("reasonThenCallTool", scripted_target, prompt=prompt, report=REPORT, store=store)
    assert answer["text"] == scripted_target.script.weather_answer
    assert answer["reasoned"][0].strip() == "Hm."


def test_history_is_carried_by_messages_and_by_id(ai: NodeClient, target: Target) -> None:
    first, by_messages, by_id = ai("talk", target, name=target.script.name, asked=target.script.asked)
    assert first["text"] == target.script.name_answer
    assert by_messages["text"] == by_id["text"] == target.script.asked_answer
    assert by_messages["input"] == by_id["input"] > first["input"]


def test_an_error_is_typed(ai: NodeClient, target: Target) -> None:
    with pytest.raises(ClientFailed, match="temperature") as raised:
        ai("refused", target)
    assert (raised.value.name, raised.value.status) == ("AI_APICallError", 400)


By = Callable[..., Any]


@pytest.fixture(params=["chat", "compatible"])
def by(request: pytest.FixtureRequest, ai: NodeClient, target: Target) -> By:
    """Calls a function with `openai.chat()`, or with a model of @ai-sdk/openai-compatible."""

    def call(name: str, **args: Any) -> Any:
        return ai("by", target, provider=request.param, name=name, args=args)

    return call


def test_completions_generate_text(by: By, target: Target) -> None:
    answer = by("generate", prompt=target.script.hello)
    assert (answer["text"], answer["finishReason"]) == (target.script.hello_answer, "stop")
    assert answer["usage"]["totalTokens"] == answer["usage"]["inputTokens"] + answer["usage"]["outputTokens"]


def test_completions_stream_text(by: By, target: Target) -> None:
    answer = by("stream", prompt=target.script.long)
    assert answer["text"] == target.script.long_answer
    assert answer["kinds"] == ["start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"]


def test_completions_call_a_tool_in_a_loop(by: By, target: Target) -> None:
    answer = by("callTool", prompt=target.script.weather, report=REPORT)
    assert answer == {"text": target.script.weather_answer, "calls": CALLS}


def test_completions_call_a_tool_in_a_streamed_loop(by: By, target: Target) -> None:
    answer = by("streamToolCall", prompt=target.script.weather, report=REPORT)
    assert answer["text"] == target.script.weather_answer
    assert {"tool-input-start", "tool-input-delta", "tool-call", "tool-result"} <= set(answer["kinds"])


def test_completions_fill_a_schema(by: By, target: Target) -> None:
    assert by("structured", prompt=target.script.paris) == PARIS.model_dump()


def test_an_error_of_completions_is_typed(by: By) -> None:
    with pytest.raises(ClientFailed, match="temperature") as raised:
        by("refused")
    assert (raised.value.name, raised.value.status) == ("AI_APICallError", 400)


def test_reasoning_of_completions_is_shown_and_goes_back(ai: NodeClient, target: Target) -> None:
    """By @ai-sdk/openai-compatible; `openai.chat()` reads no reasoning."""
    answer = ai("compatibleReason", target, prompt=target.script.hello)
    assert answer["reasoningText"].strip() == answer["deltas"].strip() == target.script.hello_thought
    assert answer["text"] == answer["again"] == target.script.hello_answer
