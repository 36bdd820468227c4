"""pydantic-ai: whole runs of its agents, with its models for the Responses API and for chat completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput, PartDeltaEvent, ThinkingPartDelta, Tool, ToolOutput
from pydantic_ai.capabilities import ToolSearch
from pydantic_ai.messages import ModelMessage, ThinkingPart
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIChatModelSettings,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)
from pydantic_ai.profiles.openai import openai_model_profile
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.target import PARIS, REPORT, City, Target
from tests.support.longhaul import Longhaul

THINKING = OpenAIResponsesModelSettings(openai_reasoning_effort="medium", openai_reasoning_summary="auto")


@pytest.fixture
def model(async_client: AsyncOpenAI, target: Target) -> OpenAIResponsesModel:
    return OpenAIResponsesModel(target.model, provider=OpenAIProvider(openai_client=async_client))


def agent(model: OpenAIResponsesModel, **more: Any) -> Agent[None, Any]:
    return Agent(model, **more)


def get_weather(city: str) -> str:
    """Current weather of a city."""
    assert city == "Paris"
    return REPORT


def thoughts(messages: list[ModelMessage]) -> list[str]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ThinkingPart)]


async def test_run(model: OpenAIResponsesModel, target: Target) -> None:
    result = await agent(model).run(target.script.hello)
    assert result.output == target.script.hello_answer
    assert result.usage.output_tokens > 0
    assert result.response.finish_reason == "stop"


@pytest.mark.parametrize("transport", ["http", "websocket"])
async def test_run_stream(model: OpenAIResponsesModel, target: Target, transport: Any) -> None:
    settings = OpenAIResponsesModelSettings(openai_transport=transport)
    async with agent(model, model_settings=settings).run_stream(target.script.long) as stream:
        deltas = [delta async for delta in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(deltas) == target.script.long_answer
    assert len(deltas) > 10


async def test_a_tool_is_called_in_a_loop(model: OpenAIResponsesModel, target: Target) -> None:
    result = await agent(model, tools=[get_weather]).run(target.script.weather)
    assert result.output == target.script.weather_answer
    kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
    assert kinds == ["user-prompt", "tool-call", "tool-return", "text"]


async def test_a_tool_is_called_in_a_streamed_loop(model: OpenAIResponsesModel, target: Target) -> None:
    async with agent(model, tools=[get_weather]).run_stream(target.script.weather) as stream:
        assert await stream.get_output() == target.script.weather_answer


async def test_a_native_output_is_a_structured_output(model: OpenAIResponsesModel, target: Target) -> None:
    result = await agent(model, output_type=NativeOutput(City)).run(target.script.paris)
    assert result.output == PARIS


async def test_a_tool_output_is_a_call_that_must_be_made(model: OpenAIResponsesModel, target: Target) -> None:
    def weather_of(city: str) -> str:
        return f"asked about {city}"

    output = ToolOutput(weather_of, name="get_weather", description="Current weather of a city.")
    result = await agent(model, output_type=output).run(target.script.weather)
    assert result.output == "asked about Paris"


async def test_messages_carry_the_history(model: OpenAIResponsesModel, target: Target) -> None:
    first = await agent(model).run(target.script.name, model_settings=THINKING)
    assert first.output == target.script.name_answer
    second = await agent(model).run(target.script.asked, message_history=first.all_messages())
    assert second.output == target.script.asked_answer


async def test_previous_response_id_carries_the_history(model: OpenAIResponsesModel, target: Target) -> None:
    first = await agent(model).run(target.script.name)
    settings = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    second = await agent(model, model_settings=settings).run(target.script.asked, message_history=first.all_messages())
    assert second.output == target.script.asked_answer
    assert second.usage.input_tokens > first.usage.total_tokens


async def test_reasoning_is_shown(model: OpenAIResponsesModel, target: Target) -> None:
    result = await agent(model).run(target.script.hello, model_settings=THINKING)
    assert thoughts(result.all_messages()) == [target.script.hello_thought]
    assert result.output == target.script.hello_answer
    assert result.usage.details["reasoning_tokens"] > 0


async def test_reasoning_is_shown_as_it_streams(model: OpenAIResponsesModel, target: Target) -> None:
    shown = ""
    async with agent(model).run_stream_events(target.script.hello, model_settings=THINKING) as events:
        async for event in events:
            if isinstance(event, PartDeltaEvent) and isinstance(event.delta, ThinkingPartDelta):
                shown += event.delta.content_delta or ""
    assert shown == target.script.hello_thought


async def test_a_background_response_is_waited_for(model: OpenAIResponsesModel, target: Target) -> None:
    settings = OpenAIResponsesModelSettings(openai_background=True)
    result = await agent(model).run(target.script.hello, model_settings=settings)
    assert result.output == target.script.hello_answer


async def test_settings_are_honoured(model: OpenAIResponsesModel, target: Target) -> None:
    settings = OpenAIResponsesModelSettings(
        max_tokens=300,
        temperature=0.0,
        top_p=0.9,
        parallel_tool_calls=False,
        openai_logprobs=True,
        openai_top_logprobs=2,
        openai_store=False,
        openai_user="someone",
        openai_truncation="auto",
        openai_service_tier="flex",
        openai_prompt_cache_key="a key",
    )
    result = await agent(model).run(target.script.hello, model_settings=settings)
    assert result.output == target.script.hello_answer


async def test_an_answer_without_text_is_no_output(scripted: Longhaul) -> None:
    """With `str` alone as its output type, pydantic-ai asks again instead."""
    async with scripted.async_client() as client:
        model = OpenAIResponsesModel("scripted", provider=OpenAIProvider(openai_client=client))
        assert (await agent(model, output_type=str | None).run("/raw ")).output is None


async def test_a_context_beyond_the_threshold_is_compacted(scripted: Longhaul) -> None:
    settings = OpenAIResponsesModelSettings(
        openai_context_management=[{"type": "compaction", "compact_threshold": 1000}]
    )
    async with scripted.async_client() as client:
        model = OpenAIResponsesModel("scripted", provider=OpenAIProvider(openai_client=client))
        first = await agent(model).run("/repeat 1500 a")
        second = await agent(model, model_settings=settings).run("Hello!", message_history=first.all_messages())
        kinds = [part.part_kind for part in second.response.parts]
        third = await agent(model, model_settings=settings).run("Bye!", message_history=second.all_messages())
    assert kinds == ["compaction", "text"]
    assert third.output == "You said: Bye!"
    assert third.usage.input_tokens < first.usage.output_tokens


async def test_tools_that_load_later_are_searched_for(scripted: Longhaul) -> None:
    """The profile is one of OpenAI's: pydantic-ai sends `tool_search` to those models only."""

    def find(context: Any, queries: Sequence[str], tools: Sequence[Any]) -> list[str]:
        assert list(queries) == ["weather"]
        return [tool.name for tool in tools]

    search, call = (
        f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'
        for name, arguments in (("tool_search", {"queries": ["weather"]}), ("get_weather", {"city": "Paris"}))
    )
    async with scripted.async_client() as client:
        model = OpenAIResponsesModel(
            "scripted", provider=OpenAIProvider(openai_client=client), profile=openai_model_profile("gpt-5.4")
        )
        asking = agent(model, tools=[Tool(get_weather, defer_loading=True)], capabilities=[ToolSearch(strategy=find)])
        result = await asking.run(f"/turns {search} /then {call} /then {{results}}")
    assert result.output == REPORT


@pytest.fixture
def chat_model(async_client: AsyncOpenAI, target: Target) -> OpenAIChatModel:
    return OpenAIChatModel(target.model, provider=OpenAIProvider(openai_client=async_client))


async def test_chat_completions_call_a_tool_in_a_loop(chat_model: OpenAIChatModel, target: Target) -> None:
    result = await Agent(chat_model, tools=[get_weather]).run(target.script.weather)
    assert result.output == target.script.weather_answer
    assert result.usage.output_tokens > 0


async def test_chat_completions_are_streamed(chat_model: OpenAIChatModel, target: Target) -> None:
    async with Agent(chat_model).run_stream(target.script.long) as stream:
        deltas = [delta async for delta in stream.stream_text(delta=True, debounce_by=None)]
        assert stream.usage.output_tokens > 0
    assert "".join(deltas) == target.script.long_answer


async def test_chat_completions_fill_a_model(chat_model: OpenAIChatModel, target: Target) -> None:
    assert (await Agent(chat_model, output_type=NativeOutput(City)).run(target.script.paris)).output == PARIS


async def test_chat_completions_show_reasoning_and_take_it_back(chat_model: OpenAIChatModel, target: Target) -> None:
    settings = OpenAIChatModelSettings(openai_reasoning_effort="medium")
    asking = Agent(chat_model, model_settings=settings)
    first = await asking.run(target.script.hello)
    second = await asking.run(target.script.hello, message_history=first.all_messages())
    assert thoughts(first.new_messages()) == [target.script.hello_thought]
    assert second.output == target.script.hello_answer
