"""What pydantic-ai alone does: outputs by calls, ids, background, compaction, a tool search in the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.clients.target import REPORT, Target, get_weather
from tests.support.tool_servers import call, turns


@pytest.fixture
def responses(scripted_target: Target) -> Any:
    """The adapter. It imports the package, which takes a second."""
    from tests.clients.adapters.pydantic_ai import Responses

    return Responses(scripted_target)


async def test_a_tool_output_is_a_call_that_must_be_made(responses: Any) -> None:
    from pydantic_ai import ToolOutput

    def weather_of(city: str) -> str:
        return f"asked about {city}"

    output = ToolOutput(weather_of, name="get_weather", description="Current weather of a city.")
    assert (await responses.run(responses.target.script.weather, output_type=output)).output == "asked about Paris"


async def test_history_goes_by_id_in_the_background_with_every_setting(responses: Any) -> None:
    script = responses.target.script
    first = await responses.run(script.name, settings={"openai_background": True})
    settings = {
        "max_tokens": 300,
        "temperature": 0.0,
        "top_p": 0.9,
        "parallel_tool_calls": False,
        "openai_logprobs": True,
        "openai_top_logprobs": 2,
        "openai_store": False,
        "openai_user": "someone",
        "openai_truncation": "auto",
        "openai_service_tier": "flex",
        "openai_prompt_cache_key": "a key",
    }
    by_id = {**settings, "openai_previous_response_id": "auto"}
    second = await responses.run(script.asked, first.all_messages(), settings=by_id)
    assert second.output == script.asked_answer
    assert second.usage.input_tokens > first.usage.total_tokens


async def test_reasoning_is_shown_as_it_streams(responses: Any) -> None:
    from pydantic_ai import PartDeltaEvent, ThinkingPartDelta

    shown = ""
    async with (
        responses.agent(settings=responses.thinking) as agent,
        agent.run_stream_events(responses.target.script.hello) as events,
    ):
        async for event in events:
            if isinstance(event, PartDeltaEvent) and isinstance(event.delta, ThinkingPartDelta):
                shown += event.delta.content_delta or ""
    assert shown == responses.target.script.hello_thought


async def test_a_context_beyond_the_threshold_is_compacted(responses: Any) -> None:
    settings = {"openai_context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    first = await responses.run("/repeat 1500 a")
    second = await responses.run("Hello!", first.all_messages(), settings=settings)
    third = await responses.run("Bye!", second.all_messages(), settings=settings)
    assert [part.part_kind for part in second.response.parts] == ["compaction", "text"]
    assert third.output == "You said: Bye!"
    assert third.usage.input_tokens < first.usage.output_tokens


async def test_tools_that_load_later_are_searched_for(responses: Any) -> None:
    """The profile is one of OpenAI's: pydantic-ai sends `tool_search` to those models only."""
    from pydantic_ai import Tool
    from pydantic_ai.capabilities import ToolSearch
    from pydantic_ai.profiles.openai import openai_model_profile

    def find(context: Any, queries: Sequence[str], tools: Sequence[Any]) -> list[str]:
        assert list(queries) == ["weather"]
        return [tool.name for tool in tools]

    said = turns(call("tool_search", queries=["weather"]), call("get_weather", city="Paris"), "{results}")
    late = {"tools": [Tool(get_weather, defer_loading=True)], "capabilities": [ToolSearch(strategy=find)]}
    result = await responses.run(said, profile=openai_model_profile("gpt-5.4"), **late)
    assert result.output == REPORT
