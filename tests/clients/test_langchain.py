"""langchain-openai with `use_responses_api=True`, and with chat completions, which are its default."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import BadRequestError, DefaultAsyncHttpxClient, DefaultHttpxClient
from pydantic import SecretStr

from tests.clients.target import PARIS, REPORT, THINKING, City, Target
from tests.support.longhaul import Longhaul

Chat = Callable[..., ChatOpenAI]


@pytest.fixture
async def chat(target: Target) -> AsyncIterator[Chat]:
    """Uses connections of the test: langchain keeps its own across event loops."""
    with DefaultHttpxClient() as http_client:
        async with DefaultAsyncHttpxClient() as http_async_client:
            yield partial(
                ChatOpenAI,
                model=target.model,
                base_url=target.url,
                api_key=SecretStr("unused"),
                use_responses_api=True,
                max_retries=0,
                http_client=http_client,
                http_async_client=http_async_client,
            )


@pytest.fixture
def completions(chat: Chat) -> Chat:
    """LangChain as it comes."""
    return partial(chat, use_responses_api=None)


@tool
def get_weather(city: str) -> str:
    """Current weather of a city."""
    return REPORT


def test_invoke(chat: Chat, target: Target) -> None:
    message = chat().invoke(target.script.hello)
    assert message.text == target.script.hello_answer
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_tokens"] > 0
    assert message.response_metadata["status"] == "completed"


def test_stream(chat: Chat, target: Target) -> None:
    chunks = list(chat().stream(target.script.long))
    assert "".join(chunk.text for chunk in chunks) == target.script.long_answer
    assert len(chunks) > 10


@pytest.mark.parametrize("chained", [False, True])
def test_bind_tools_makes_a_loop(chat: Chat, target: Target, chained: bool) -> None:
    model = chat(use_previous_response_id=chained).bind_tools([get_weather])
    asked = HumanMessage(target.script.weather)
    called = model.invoke([asked])
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    said = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.invoke([asked, called, said]).text == target.script.weather_answer


def test_a_call_is_streamed(chat: Chat, target: Target) -> None:
    whole: AIMessageChunk | None = None
    for chunk in chat().bind_tools([get_weather]).stream(target.script.weather):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})


@pytest.mark.parametrize("strict", [None, True])
def test_with_structured_output(chat: Chat, target: Target, strict: bool | None) -> None:
    model = chat().with_structured_output(City, method="json_schema", strict=strict)
    assert model.invoke(target.script.paris) == PARIS


def test_json_mode(chat: Chat, target: Target) -> None:
    model = chat().with_structured_output(City, method="json_mode")
    assert model.invoke(f"{target.script.paris}") == PARIS


def test_messages_carry_the_history(chat: Chat, target: Target) -> None:
    said = [HumanMessage(target.script.name)]
    first = chat().invoke(said)
    assert isinstance(first, AIMessage)
    assert chat().invoke([*said, first, HumanMessage(target.script.asked)]).text == target.script.asked_answer


def test_previous_response_id_carries_the_history(chat: Chat, target: Target) -> None:
    first = chat().invoke(target.script.name)
    second = chat().invoke(target.script.asked, previous_response_id=first.response_metadata["id"])
    assert second.text == target.script.asked_answer


def test_reasoning_comes_beside_the_text(chat: Chat, target: Target) -> None:
    message = chat(reasoning={"effort": "medium"}).invoke(target.script.hello)
    assert message.text == target.script.hello_answer
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_token_details"]["reasoning"] > 0


def _shown(message: AIMessage) -> str:
    return "".join(str(block.get("reasoning", "")) for block in message.content_blocks if block["type"] == "reasoning")


def test_reasoning_is_shown(chat: Chat, target: Target) -> None:
    message = chat(reasoning=THINKING, output_version="responses/v1").invoke(target.script.hello)
    assert isinstance(message, AIMessage)
    assert _shown(message) == target.script.hello_thought


async def test_reasoning_is_shown_as_it_streams(chat: Chat, target: Target) -> None:
    shown = [_shown(chunk) async for chunk in chat(reasoning=THINKING).astream(target.script.hello)]
    assert "".join(shown) == target.script.hello_thought
    assert len([text for text in shown if text]) > 1


def test_a_history_with_reasoning_goes_on(chat: Chat, target: Target) -> None:
    said = [HumanMessage(target.script.name)]
    first = chat(reasoning=THINKING, output_version="responses/v1").invoke(said)
    assert isinstance(first, AIMessage)
    assert chat().invoke([*said, first, HumanMessage(target.script.asked)]).text == target.script.asked_answer


def test_a_context_beyond_the_threshold_is_compacted(scripted: Longhaul) -> None:
    with DefaultHttpxClient() as http_client:
        model = ChatOpenAI(
            model="scripted",
            base_url=f"{scripted.url}/v1",
            api_key=SecretStr("unused"),
            context_management=[{"type": "compaction", "compact_threshold": 1000}],
            output_version="responses/v1",
            max_retries=0,
            http_client=http_client,
        )
        said = [HumanMessage("/repeat 1500 a"), AIMessage("a" * 1500), HumanMessage("Hello!")]
        compacted = model.invoke(said)
        assert isinstance(compacted, AIMessage)
        again = model.invoke([*said, compacted, HumanMessage("Bye!")])
    assert isinstance(compacted.content, list)
    assert [block["type"] for block in compacted.content if isinstance(block, dict)] == ["compaction", "text"]
    assert again.text == "You said: Bye!"


def test_completions_invoke(completions: Chat, target: Target) -> None:
    message = completions(temperature=0, max_tokens=100).invoke(target.script.hello)
    assert isinstance(message, AIMessage)
    assert message.text == target.script.hello_answer
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.usage_metadata is not None
    assert message.usage_metadata["total_tokens"] == (
        message.usage_metadata["input_tokens"] + message.usage_metadata["output_tokens"]
    )


async def test_completions_stream_with_their_usage(completions: Chat, target: Target) -> None:
    whole: AIMessageChunk | None = None
    async for chunk in completions(stream_usage=True).astream(target.script.long):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.text == target.script.long_answer
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 0


@pytest.mark.parametrize("parallel", [None, False])
def test_completions_with_tools_make_a_loop(completions: Chat, target: Target, parallel: bool | None) -> None:
    model = completions().bind_tools([get_weather], parallel_tool_calls=parallel)
    asked = HumanMessage(target.script.weather)
    called = model.invoke([asked])
    assert isinstance(called, AIMessage)
    (call,) = called.tool_calls
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.invoke([asked, called, result]).text == target.script.weather_answer


def test_a_call_of_completions_is_streamed(completions: Chat, target: Target) -> None:
    whole: AIMessageChunk | None = None
    for chunk in completions().bind_tools([get_weather]).stream(target.script.weather):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_completions_with_structured_output(completions: Chat, target: Target, method: Any) -> None:
    assert completions().with_structured_output(City, method=method).invoke(target.script.paris) == PARIS


def test_completions_with_structured_output_by_a_call(completions: Chat, scripted_target: Target) -> None:
    call = json.dumps({"name": "City", "arguments": PARIS.model_dump()})
    model = completions(model=scripted_target.model, base_url=scripted_target.url)
    structured = model.with_structured_output(City, method="function_calling")
    assert structured.invoke(f"/raw <tool_call>{call}</tool_call>") == PARIS


def test_completions_with_log_probabilities(completions: Chat, target: Target) -> None:
    message = completions(logprobs=True, top_logprobs=2).invoke(target.script.hello)
    tokens = message.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == target.script.hello_answer
    assert {len(token["top_logprobs"]) for token in tokens} == {2}


def test_an_error_of_completions_is_typed(completions: Chat) -> None:
    with pytest.raises(BadRequestError) as raised:
        completions(temperature=9).invoke("Hi")
    assert raised.value.param == "temperature"
