"""openai-agents: whole runs, over HTTP, over its WebSocket transport, and by chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    ReasoningItem,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from openai.types.shared import Reasoning

from tests.clients.adapters import Adapter
from tests.clients.target import City, get_weather

PLAIN = RunConfig(tracing_disabled=True)
WEATHER = function_tool(get_weather)


class Http(Adapter):
    kind: Any = OpenAIResponsesModel
    thinking = Reasoning(effort="medium", summary="auto")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Model]:
        async with self.target.installation.async_client() as client:
            model = self.kind(self.model, client)
            yield model
            await model.close()

    async def run(self, said: Any, *, run: Any = None, **more: Any) -> Any:
        """The result of an agent that has `more`; `run` has arguments of the run."""
        async with self.opened() as model:
            agent: Agent[None] = Agent(name="Assistant", model=model, **more)
            return await Runner.run(agent, said, run_config=PLAIN, **(run or {}))

    async def _streamed(self, said: str, **more: Any) -> tuple[Any, list[Any]]:
        async with self.opened() as model:
            agent: Agent[None] = Agent(name="Assistant", model=model, **more)
            result = Runner.run_streamed(agent, said, run_config=PLAIN)
            return result, [event async for event in result.stream_events()]

    async def text(self, asked: str) -> str:
        result = await self.run(asked)
        assert result.raw_responses[0].usage.output_tokens > 0
        return result.final_output

    async def stream(self, asked: str) -> list[str]:
        result, events = await self._streamed(asked)
        raw = [event.data for event in events if event.type == "raw_response_event"]
        pieces = [each.delta for each in raw if each.type == "response.output_text.delta"]
        assert "".join(pieces) == result.final_output
        return pieces

    async def tool_loop(self, asked: str) -> str:
        result = await self.run(asked, tools=[WEATHER])
        kinds = [item.type for item in result.new_items]
        assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
        return result.final_output

    async def streamed_tool_loop(self, asked: str) -> str:
        result, events = await self._streamed(asked, tools=[WEATHER])
        seen = [event.name for event in events if event.type == "run_item_stream_event"]
        assert seen == ["tool_called", "tool_output", "message_output_created"]
        return result.final_output

    async def structured(self, asked: str) -> City:
        return (await self.run(asked, output_type=City)).final_output

    async def history(self, *asked: str) -> list[str]:
        first = await self.run(asked[0])
        second = await self.run(asked[1], run={"previous_response_id": first.last_response_id})
        return [first.final_output, second.final_output]

    async def reasoning(self, asked: str) -> tuple[str, str]:
        result, _ = await self._streamed(asked, model_settings=ModelSettings(reasoning=self.thinking))
        (thought,) = [item for item in result.new_items if isinstance(item, ReasoningItem)]
        return "".join(part.text for part in thought.raw_item.summary).strip(), result.final_output

    async def error(self) -> None:
        await self.run("Hi", model_settings=ModelSettings(temperature=9))


class WebSocket(Http):
    kind = OpenAIResponsesWSModel


class Chat(Http):
    kind = OpenAIChatCompletionsModel
    thinking = Reasoning(effort="medium")

    async def history(self, *asked: str) -> list[str]:
        session = SQLiteSession("talk")
        try:
            return [(await self.run(each, run={"session": session})).final_output for each in asked]
        finally:
            session.close()
